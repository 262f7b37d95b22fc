"""`tidegate table`: the tables of lakes on the screen and as documents, without any Spark."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

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
from integration.commands import BUSY, DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from integration.filled_lakes import catalog_of
from tidegate.control.job_records import JobRecords
from tidegate.insight.table_documents import history_document
from tidegate.insight.table_history import table_history
from tidegate.model.maintenance import Action, Order, RewriteDataFiles
from tidegate.runtime.maintaining import submit_maintenance

STRICT = """
[maintenance.thresholds]
small_files = 5
"""
# Who tries to start Spark like this fails.
NO_JAVA = {"PATH": "", "JAVA_HOME": "/nonexistent"}
REWRITE = Order(((Action.REWRITE_DATA_FILES, RewriteDataFiles()),))


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """raw.orders has six small files, raw.items one."""
    place = cared_place(make_place, STRICT)
    small_files(place, ORDERS)
    small_files(place, ITEMS, files=1)
    return place


def table(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "table", *arguments, environment=NO_JAVA)


def jobs(place: Place) -> int:
    return int(place.control.value("SELECT count(*) FROM tidegate_control.jobs"))


def test_the_list_of_a_fresh_project_is_read_from_the_catalog(place: Place) -> None:
    done = table(place, "list")
    assert done.code == DONE, done
    items, orders = (line.split() for line in done.out.splitlines()[1:3])
    assert items[:2] == ["lake:raw.items", "good"]
    assert orders[:4] == ["lake:raw.orders", "warning", "12", "6"]
    assert orders[-1] == "small_files"
    assert "stale" not in done.out
    assert "\x1b" not in done.out


def test_the_list_is_as_cached_until_it_is_asked_to_refresh(place: Place) -> None:
    refresh(place)
    add_files(place)
    before = table(place, "list", "--json").document
    assert [one["facts"]["data"]["files"] for one in before["tables"]] == [1, 6]
    assert [one["state"] for one in before["tables"]] == ["good", "warning"]
    after = table(place, "list", "--refresh", "--json").document
    assert [one["facts"]["data"]["files"] for one in after["tables"]] == [1, 7]
    assert after["catalogs"][0]["error"] is None


def test_a_catalog_that_is_down_is_said_to_be_stale_and_the_tables_stay(
    place: Place,
) -> None:
    refresh(place)
    toml = place.folder / "tidegate.toml"
    toml.write_text(
        toml.read_text().replace(
            'type = "iceberg"',
            'type = "iceberg"\ncatalog = "rest"\nuri = "http://127.0.0.1:1"',
        )
    )
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
    plain = make_place()
    done = tidegate(plain.folder, "table", "list")
    assert done.code == USAGE
    assert "has no lake" in done.err
    empty = cared_place(make_place)
    assert table(empty, "list").out == "no tables\n"
    assert table(empty, "health").out == "no tables\n"
    assert table(empty, "status", "orders").code == USAGE


def test_status_is_live_and_names_what_is_meant(place: Place) -> None:
    refresh(place)
    add_files(place)
    done = table(place, "status", "orders")
    assert done.code == DONE
    assert done.out.startswith("lake:raw.orders, now\n")
    assert "data: 7 files" in done.out
    document = table(place, "status", "lake:raw.orders", "--json").document
    assert document["live"] is True
    assert document["facts"]["snapshots"] == 7
    wrong = table(place, "status", "raw.ordres")
    assert wrong.code == USAGE
    assert "did you mean lake:raw.orders?" in wrong.err
    document = table(place, "status", "raw.ordres", "--json").document
    assert document["error"] == "UnknownTable"


def test_health_exits_with_1_only_when_it_is_asked_to(place: Place) -> None:
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


def test_a_recommendation_says_why_what_it_would_change_and_why_the_rest_not(
    place: Place,
) -> None:
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


def test_a_dry_run_foretells_locks_nothing_and_is_kept(place: Place) -> None:
    arguments = ("maintain", "raw.orders", "--dry-run", "--action", "rewrite_data_files")
    with opened(place) as (project, control):
        held = submit_maintenance(project.context, control, TARGET, REWRITE, actor="another")
        done = table(place, *arguments)
        assert (done.code, done.err) == (DONE, "")
        assert "rewrite_data_files would make 6 → 1 data files" in done.out
        document = table(place, *arguments, "--json").document
        assert document["predicted"]["rewrite_data_files"]["before"]["files"] == 6
        page = table_history(project.context, control, TARGET, limit=1)
        (newest,) = history_document(page)["jobs"]
        assert newest["job_id"] == document["job"]
        assert newest["dry_run"] is True
        assert newest["status"] == "done"
        assert page.next is not None
        rest = table_history(project.context, control, TARGET, before=page.next)
        assert [one.job_id for one in rest.jobs][-1] == held.job_id
        assert len(rest.jobs) == 2


def test_all_five_actions_are_foretold_without_spark(place: Place) -> None:
    chosen = [part for action in Action for part in ("--action", action.value)]
    done = table(place, "maintain", "raw.orders", "--dry-run", "--json", *chosen)
    assert done.code == DONE, done
    assert set(done.document["predicted"]) == {action.value for action in Action}


def test_nothing_recommended_is_said_and_nothing_is_done(place: Place) -> None:
    toml = place.folder / "tidegate.toml"
    toml.write_text(f"{toml.read_text()}\n[maintenance.remove_orphan_files]\nenabled = false\n")
    done = table(place, "maintain", "raw.items")
    assert done.code == DONE
    assert "nothing is recommended now" in done.out
    assert table(place, "maintain", "raw.items", "--json").document["status"] == "nothing"
    assert jobs(place) == 0


def test_queued_maintenance_has_its_options_and_is_refused_while_another_has_the_table(
    place: Place,
) -> None:
    arguments = (
        "maintain",
        "raw.orders",
        "--queue",
        "--option",
        "rewrite_data_files.target_file_size=256MB",
        "--option",
        "rewrite_data_files.min_input_files=2",
    )
    done = table(place, *arguments, "--json")
    assert done.code == DONE, done
    assert done.document["status"] == "queued"
    with opened(place) as (project, control):
        record = JobRecords(project.context.plane).get(control, UUID(done.document["job"]))
    assert record is not None
    assert Order.read(record.payload["order"]) == Order(
        ((Action.REWRITE_DATA_FILES, RewriteDataFiles(256 * 1024 * 1024, 2)),)
    )
    busy = table(place, *arguments)
    assert busy.code == BUSY
    assert f"held by job {done.document['job']}" in busy.err
    here = table(place, "maintain", "raw.orders", "--action", "rewrite_data_files")
    assert here.code in (BUSY, FAILED)
    tidegate(place.folder, "drain", "on")
    drained = table(place, "maintain", "raw.items", "--queue", "--action", "rewrite_data_files")
    assert drained.code == BUSY
    assert "drains this control plane" in drained.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--option", "rewrite_data_files.target_file_size=1"), "1MB at least"),
        (("--option", "rewrite_data_files.nosuch=1"), "has no such option"),
        (("--option", "nosuch.target_file_size=256MB"), "there is no action 'nosuch'"),
        (("--option", "nonsense"), "is not an option of an action"),
        (("--action", "nosuch"), "rewrite_data_files"),
        (("--follow",), "--follow is for queued jobs"),
        (("--queue", "--dry-run"), "give one of them"),
    ],
)
def test_a_wrong_order_is_refused_before_anything_is_done(
    place: Place, arguments: tuple[str, ...], said: str
) -> None:
    done = table(place, "maintain", "raw.orders", *arguments)
    assert done.code == USAGE, done
    assert said in done.err
    assert jobs(place) == 0


def test_on_a_terminal_health_has_its_colour(place: Place) -> None:
    """As a person sees it: standard output is a terminal."""
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "160", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "table", "list", "-C", str(place.folder)],
        stdout=follower, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    os.close(follower)
    said = b""
    while True:
        try:
            chunk = os.read(leader, 65_536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        said += chunk
    assert process.wait() == DONE
    assert b"\x1b[32mgood" in said
    assert b"\x1b[33mwarning" in said


def test_no_command_that_looks_imports_pyspark(place: Place, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import sys\n"
        "from tidegate.cli.main import app\n"
        "for command in (['list'], ['status', 'orders'], ['health'], ['recommend', 'orders'],\n"
        "                ['maintain', 'orders', '--dry-run', '--action', 'rewrite_data_files']):\n"
        f"    app(['table', *command, '-C', {str(place.folder)!r}], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules, 'pyspark was imported'\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_table_whose_warehouse_is_away_says_where_it_should_be(place: Place) -> None:
    refresh(place)
    folder = Path(catalog_of(place).warehouse)
    folder.rename(folder.with_name("away"))
    done = table(place, "status", "raw.orders")
    assert done.code == FAILED
    assert "has lost its metadata" in done.err
    assert json.loads(table(place, "status", "raw.orders", "--cached", "--json").out)["facts"]


def test_status_has_a_line_about_tables_that_are_known_to_be_not_well(place: Place) -> None:
    assert "tables not well" not in tidegate(place.folder, "status", environment=NO_JAVA).out
    refresh(place)
    done = tidegate(place.folder, "status", environment=NO_JAVA)
    assert "tables not well: lake:raw.orders (small_files); see: tidegate table health" in done.out
    (unwell,) = tidegate(place.folder, "status", "--json").document["unwell_tables"]
    assert (unwell["table"], unwell["state"]) == ("lake:raw.orders", "warning")


def test_maintenance_here_says_what_it_changed_and_health_is_good_afterwards(
    place: Place,
) -> None:
    """The one test here that starts Spark."""
    refresh(place)
    assert table(place, "health", "raw.orders", "--cached", "--fail").code == FAILED
    done = tidegate(
        place.folder, "--set", "spark.master=local[1]", "table", "maintain", "raw.orders"
    )
    assert done.code == DONE, done
    lines = done.out.splitlines()
    assert lines[0].startswith("lake:raw.orders: recommended are ")
    (rewrite,) = (line for line in lines if line.startswith("lake:raw.orders: rewrite_data_files:"))
    assert "6 → 1 data files" in rewrite
    assert "foretold 6 → 1 data files" in rewrite
    # The cache was brought up to date by whoever has done it.
    assert table(place, "health", "raw.orders", "--cached", "--fail").code == DONE
    again = table(place, "recommend", "raw.orders", "--json").document
    assert again["order"] is None
    with opened(place) as (project, control):
        page = history_document(table_history(project.context, control, TARGET))
    (job,) = page["jobs"]
    assert job["status"] == "done"
    (action,) = (one for one in job["actions"] if one["action"] == "rewrite_data_files")
    assert action["detail"]["files_before"] == 6
    assert action["detail"]["files_after"] == 1
