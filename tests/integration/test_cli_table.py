"""`tidegate table`: the tables of lakes on the screen and as documents, without any Spark."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from forked import Forked
from integration.cached_lakes import (
    ITEMS,
    ORDERS,
    TARGET,
    add_files,
    cared_place,
    opened,
    refresh,
    small_files,
)
from integration.commands import BUSY, DONE, FAILED, USAGE, Done
from integration.conftest import MakePlace, Place, WarmSpark
from integration.filled_lakes import catalog_of
from integration.here import tidegate
from tidegate.core.table_actions import Action, ActionList, RewriteDataFiles
from tidegate.jobs.job_records import JobRecords
from tidegate.maintenance.submit import submit_maintenance
from tidegate.maintenance.table_report import history_document
from tidegate.maintenance.tables import table_history

STRICT = "[maintenance.thresholds]\nsmall_files = 5\n"
REWRITE = ActionList(((Action.REWRITE_DATA_FILES, RewriteDataFiles()),))
LOOK = """
import sys
from tidegate.cli.main import app
for command in (['list'], ['status', 'orders'], ['health'], ['recommend', 'orders'],
                ['maintain', 'orders', '--dry-run', '--action', 'rewrite_data_files']):
    app(['table', *command, '-C', sys.argv[1]], standalone_mode=False)
assert 'pyspark' not in sys.modules, 'pyspark was imported'
"""


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """raw.orders has six small files, raw.items one."""
    place = cared_place(make_place, STRICT, databases=1)
    small_files(place, ORDERS)
    small_files(place, ITEMS, files=1)
    return place


def table(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "table", *arguments)


def jobs(place: Place) -> int:
    return int(place.control.value("SELECT count(*) FROM tidegate_control.jobs"))


def test_lists_and_status_are_cached_or_live_as_asked_for(place: Place) -> None:
    assert "tables not well" not in tidegate(place.folder, "status").out
    done = table(place, "list")
    assert done.code == DONE, done
    items, orders = (line.split() for line in done.out.splitlines()[1:3])
    assert items[:2] == ["lake:raw.items", "good"]
    assert orders[:4] == ["lake:raw.orders", "warning", "12", "6"]
    assert orders[-1] == "small_files"
    assert "stale" not in done.out
    assert "\x1b" not in done.out
    done = tidegate(place.folder, "status")
    assert "tables not well: lake:raw.orders (small_files); see: tidegate table health" in done.out
    (unwell,) = tidegate(place.folder, "status", "--json").document["unwell_tables"]
    assert (unwell["table"], unwell["state"]) == ("lake:raw.orders", "warning")

    add_files(place)
    before = table(place, "list", "--json").document
    assert [one["facts"]["data"]["files"] for one in before["tables"]] == [1, 6]
    assert [one["state"] for one in before["tables"]] == ["good", "warning"]
    live = table(place, "status", "orders")
    assert live.code == DONE
    assert live.out.startswith("lake:raw.orders, now\n")
    assert "data: 7 files" in live.out
    document = table(place, "status", "lake:raw.orders", "--json").document
    assert (document["live"], document["facts"]["snapshots"]) == (True, 7)
    add_files(place)
    after = table(place, "list", "--refresh", "--json").document
    assert [one["facts"]["data"]["files"] for one in after["tables"]] == [1, 8]
    assert after["catalogs"][0]["error"] is None

    wrong = table(place, "status", "raw.ordres")
    assert wrong.code == USAGE
    assert "did you mean lake:raw.orders?" in wrong.err
    assert table(place, "status", "raw.ordres", "--json").document["error"] == "UnknownTable"


def test_health_and_recommendation_say_what_is_wrong_and_what_would_help(place: Place) -> None:
    bad = table(place, "health", "raw.orders")
    assert bad.code == DONE
    assert bad.out.startswith("warning: lake:raw.orders: 6 of 6 data files are below")
    assert "rewrite_data_files helps" in bad.out
    assert table(place, "health", "raw.orders", "--fail").code == FAILED
    good = table(place, "health", "raw.items", "--fail")
    assert (good.code, good.out) == (DONE, "good: lake:raw.items\n")
    every = table(place, "health", "--fail", "--json")
    assert every.code == FAILED
    assert [(one["table"], one["state"]) for one in every.document] == [
        ("lake:raw.items", "good"),
        ("lake:raw.orders", "warning"),
    ]

    done = table(place, "recommend", "raw.orders")
    assert done.code == DONE, done
    lines = {line.partition(":")[0]: line for line in done.out.splitlines()}
    rewrite = lines["rewrite_data_files"]
    assert rewrite.startswith("rewrite_data_files: run: 6 of 6 data files are below")
    assert "would make 6 → 1 data files" in rewrite
    assert lines["rewrite_manifests"] == "rewrite_manifests: not now: nothing to do"
    assert "do it with: tidegate table maintain lake:raw.orders" in done.out
    document = table(place, "recommend", "raw.orders", "--json").document
    assert "rewrite_data_files" in document["order"]
    assert document["predicted"]["rewrite_data_files"]["after"]["files"] == 1

    toml = place.folder / "tidegate.toml"
    toml.write_text(f"{toml.read_text()}\n[maintenance.remove_orphan_files]\nenabled = false\n")
    done = table(place, "maintain", "raw.items")
    assert done.code == DONE
    assert "nothing is recommended now" in done.out
    assert table(place, "maintain", "raw.items", "--json").document["status"] == "nothing"
    assert jobs(place) == 0


def test_a_catalog_or_a_warehouse_that_is_away_is_said_and_the_tables_stay(place: Place) -> None:
    refresh(place)
    folder = Path(catalog_of(place).warehouse)
    away = folder.rename(folder.with_name("away"))
    done = table(place, "status", "raw.orders")
    assert done.code == FAILED
    assert "has lost its metadata" in done.err
    assert table(place, "status", "raw.orders", "--cached", "--json").document["facts"]
    away.rename(folder)

    toml = place.folder / "tidegate.toml"
    rest = 'type = "iceberg"\ncatalog = "rest"\nuri = "http://127.0.0.1:1"'
    toml.write_text(toml.read_text().replace('type = "iceberg"', rest))
    done = table(place, "list", "--refresh")
    assert done.code == DONE
    assert "lake:raw.orders" in done.out
    assert "lake: stale since 20" in done.out
    assert "cannot be read" in done.out
    live = table(place, "status", "raw.orders")
    assert live.code == FAILED
    assert "cannot be read" in live.err
    cached = table(place, "status", "raw.orders", "--cached")
    assert cached.code == DONE
    assert "stale since 20" in cached.out
    assert "data: 6 files" in cached.out


def test_a_project_without_a_lake_or_without_tables_says_so(make_place: MakePlace) -> None:
    done = tidegate(make_place().folder, "table", "list")
    assert done.code == USAGE
    assert "has no lake" in done.err
    empty = cared_place(make_place, databases=1)
    assert table(empty, "list").out == "no tables\n"
    assert table(empty, "health").out == "no tables\n"
    assert table(empty, "status", "orders").code == USAGE


def test_a_wrong_order_is_refused_and_a_dry_run_predicts_locks_nothing_and_is_kept(
    place: Place,
) -> None:
    for arguments, said in (
        (("--option", "rewrite_data_files.target_file_size=1"), "1MB at least"),
        (("--option", "rewrite_data_files.nosuch=1"), "has no such option"),
        (("--option", "nosuch.target_file_size=256MB"), "there is no action 'nosuch'"),
        (("--option", "nonsense"), "is not an option of an action"),
        (("--action", "nosuch"), "rewrite_data_files"),
        (("--follow",), "--follow is for queued jobs"),
        (("--queue", "--dry-run"), "give one of them"),
    ):
        done = table(place, "maintain", "raw.orders", *arguments)
        assert done.code == USAGE, done
        assert said in done.err
    assert jobs(place) == 0

    with opened(place) as (project, control):
        held = submit_maintenance(project.context, control, TARGET, REWRITE, actor="another")
        dry = ("maintain", "raw.orders", "--dry-run", "--action", "rewrite_data_files")
        done = table(place, *dry)
        assert (done.code, done.err) == (DONE, "")
        assert "rewrite_data_files would make 6 → 1 data files" in done.out
        chosen = [part for action in Action for part in ("--action", action.value)]
        document = table(place, *dry, "--json", *chosen).document
        assert set(document["predicted"]) == {action.value for action in Action}
        assert document["predicted"]["rewrite_data_files"]["before"]["files"] == 6
        page = table_history(project.context, control, TARGET, limit=1)
        (newest,) = history_document(page)["jobs"]
        assert (newest["job_id"], newest["dry_run"]) == (document["job"], True)
        assert newest["status"] == "done"
        assert page.next is not None
        rest = table_history(project.context, control, TARGET, before=page.next)
        assert [one.job_id for one in rest.jobs][-1] == held.job_id
        assert len(rest.jobs) == 2


def test_queued_maintenance_has_its_options_and_is_refused_while_another_has_the_table(
    place: Place,
) -> None:
    options = ("target_file_size=256MB", "min_input_files=2")
    given = [part for one in options for part in ("--option", f"rewrite_data_files.{one}")]
    arguments = ("maintain", "raw.orders", "--queue", *given)
    done = table(place, *arguments, "--json")
    assert done.code == DONE, done
    assert done.document["status"] == "queued"
    with opened(place) as (project, control):
        record = JobRecords(project.context.plane).get(control, UUID(done.document["job"]))
    assert record is not None
    assert ActionList.read(record.payload["order"]) == ActionList(
        ((Action.REWRITE_DATA_FILES, RewriteDataFiles(256 * 1024 * 1024, 2)),)
    )
    busy = table(place, *arguments)
    assert busy.code == BUSY
    assert f"held by job {done.document['job']}" in busy.err
    tidegate(place.folder, "drain", "on")
    drained = table(place, "maintain", "raw.items", "--queue", "--action", "rewrite_data_files")
    assert drained.code == BUSY
    assert "drains this control plane" in drained.err


def test_no_command_that_looks_imports_pyspark_and_a_terminal_shows_colours(place: Place) -> None:
    look = [sys.executable, "-c", LOOK, str(place.folder)]
    done = subprocess.run(look, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "160", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    quiet = os.open(os.devnull, os.O_RDWR)
    process = Forked(
        ["tidegate", "table", "list"], (quiet, follower, quiet), environment, place.folder
    )
    os.close(follower)
    os.close(quiet)
    said = b""
    while True:
        try:
            said += os.read(leader, 65_536)
        except OSError:  # the other end is closed
            break
    os.close(leader)
    assert process.wait(30) == DONE
    assert b"\x1b[32mgood" in said
    assert b"\x1b[33mwarning" in said


def test_maintenance_here_says_what_it_changed_and_health_is_good_afterwards(
    place: Place, warm_spark: WarmSpark
) -> None:
    warm_spark.get()  # which the command borrows
    refresh(place)
    assert table(place, "health", "raw.orders", "--cached", "--fail").code == FAILED
    done = table(place, "maintain", "raw.orders")
    assert done.code == DONE, done
    lines = done.out.splitlines()
    assert lines[0].startswith("lake:raw.orders: recommended are ")
    (rewrite,) = (line for line in lines if line.startswith("lake:raw.orders: rewrite_data_files:"))
    assert "6 → 1 data files" in rewrite
    assert "predicted 6 → 1 data files" in rewrite
    # The cache was brought up to date by whoever has done it.
    assert table(place, "health", "raw.orders", "--cached", "--fail").code == DONE
    assert table(place, "recommend", "raw.orders", "--json").document["order"] is None
    with opened(place) as (project, control):
        page = history_document(table_history(project.context, control, TARGET))
    (job,) = page["jobs"]
    assert job["status"] == "done"
    (action,) = (one for one in job["actions"] if one["action"] == "rewrite_data_files")
    assert (action["detail"]["files_before"], action["detail"]["files_after"]) == (6, 1)
