"""`tidegate db uninstall`: what Tidegate made goes, target tables and others' things stay."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from uuid import uuid4

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import Database, MakePlace, Place
from integration.filled import fill
from integration.left_behind import ALL, ORDERS, held, loaded, recorded
from integration.orders import contents
from tidegate.model.identity import new_attempt_id
from tidegate.model.staging import new_write_id, staging_table
from tidegate.spark.session import SparkSessions


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A project whose sync has loaded three rows in two loads, over three databases."""
    made = make_place(ORDERS, databases=3)
    loaded(made)
    return made


def uninstall(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "db", "uninstall", *arguments)


def schemas(database: Database) -> set[str]:
    rows = database.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'"
    )
    return {row[0] for row in rows}


def objects(database: Database, schema: str) -> set[str]:
    rows = database.execute(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE nspname = '{schema}' AND relkind IN ('r', 'v')"
    )
    return {row[0] for row in rows}


def stage(place: Place, control_id: object = None) -> str:
    context = place.open().context
    owner = control_id or context.control_id()
    name = staging_table(owner, new_attempt_id(), new_write_id())  # type: ignore[arg-type]
    place.target.execute(f"CREATE UNLOGGED TABLE tidegate.{name} (id int)")
    return name


def test_all_that_tidegate_made_goes_and_the_table_stays(place: Place) -> None:
    name = stage(place)
    done = uninstall(place, "--yes")
    assert done.code == DONE, done
    assert "warehouse, schema tidegate (ledger):" in done.out
    assert "table tidegate.etl_state, 1 rows" in done.out
    assert "table tidegate.watermark_log, 2 rows" in done.out
    assert "table tidegate.table_updates, 2 rows" in done.out
    assert f"staging table tidegate.{name}" in done.out
    assert "table tidegate_control.control_plane, 1 rows" in done.out
    assert "sequence tidegate_control.fence_tokens" in done.out
    assert "stays" not in done.out.replace("target tables are as they were", "")
    assert schemas(place.target) == {"public", "raw"}
    assert schemas(place.control) == {"public"}
    assert place.target.value("SELECT count(*) FROM raw.orders") == 3
    again = uninstall(place, "--yes")
    assert again.code == DONE
    assert "Tidegate has nothing in these databases" in again.out


def test_what_the_migrations_make_is_all_known(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    place.open().context.control_id()
    place.open().context.ledger("warehouse").ensure()
    done = uninstall(place, "--yes", "--json")
    assert {one["role"]: one["kept"] for one in done.document["found"]} == {
        "ledger": [],
        "control": [],
    }
    assert schemas(place.target) == {"public"}


def test_nothing_goes_without_a_yes(place: Place) -> None:
    before = contents(place.source, place.target, place.control)
    refused = uninstall(place)
    assert refused.code == USAGE
    assert "add --yes" in refused.err
    assert "table tidegate.etl_state" in refused.out
    listed = uninstall(place, "--dry-run", "--json")
    assert listed.code == DONE
    assert listed.document["removed"] is False
    assert [one["role"] for one in listed.document["found"]] == ["ledger", "control"]
    assert "nothing was removed" in uninstall(place, "--dry-run", "--yes").out
    assert contents(place.source, place.target, place.control) == before


@pytest.mark.parametrize(("answer", "code"), [("y", DONE), ("n", FAILED)])
def test_on_a_terminal_it_asks(place: Place, answer: str, code: int) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", "db", "uninstall"],
        cwd=place.folder,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    out, err = child.communicate(timeout=60)
    os.close(ours)
    assert "remove this? [y/N]" in out + err
    assert child.returncode == code
    assert ("tidegate" in schemas(place.target)) == (code == FAILED)


def test_a_users_objects_in_our_schemas_stay_and_so_do_the_schemas(place: Place) -> None:
    place.target.execute(
        "CREATE TABLE tidegate.notes (id serial)",
        "CREATE FUNCTION tidegate.twice(int) RETURNS int LANGUAGE sql AS 'SELECT $1 * 2'",
        "CREATE TYPE tidegate.mood AS ENUM ('fine')",
    )
    place.control.execute("CREATE VIEW tidegate_control.mine AS SELECT 1 AS one")
    done = uninstall(place, "--yes")
    assert done.code == DONE, done
    for words in ("table tidegate.notes", "function tidegate.twice(integer)", "type tidegate.mood"):
        assert words in done.out
    assert "view tidegate_control.mine" in done.out
    assert objects(place.target, "tidegate") == {"notes"}
    assert place.target.value("SELECT tidegate.twice(2)") == 4
    assert objects(place.control, "tidegate_control") == {"mine"}


def test_a_table_of_our_name_that_we_did_not_make_stays(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    place.target.execute(
        "CREATE SCHEMA tidegate",
        "CREATE TABLE tidegate.fences (garden text, metres int)",
        "CREATE TABLE tidegate.table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp)",
    )
    done = uninstall(place, "--yes")
    assert done.code == DONE
    assert objects(place.target, "tidegate") == {"fences", "table_updates"}


@pytest.mark.parametrize("schema", ["public", "tidegate"])
def test_luigis_marker_table_stays_without_the_markers_of_our_loads(
    make_place: MakePlace, schema: str
) -> None:
    place = make_place(ORDERS, databases=2)
    place.target.execute(
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        f"CREATE TABLE {schema}.table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        f"INSERT INTO {schema}.table_updates VALUES ('luigi', 'raw.orders')",
    )
    loaded(place)
    assert place.target.value(f"SELECT count(*) FROM {schema}.table_updates") == 3
    done = uninstall(place, "--yes")
    assert f"2 rows of {schema}.table_updates, which stays" in done.out
    assert place.target.execute(f"SELECT update_id FROM {schema}.table_updates") == [("luigi",)]
    assert schemas(place.target) == {"public", "raw", schema}
    assert objects(place.target, schema) == {"table_updates"}


def test_a_marker_table_of_ours_goes_wherever_it_was_asked_to_be(make_place: MakePlace) -> None:
    place = make_place(ORDERS, databases=2, ledger={"marker_table": "raw.done"})
    place.target.execute("CREATE SCHEMA raw")
    loaded(place)
    done = uninstall(place, "--yes")
    assert "table raw.done, 2 rows" in done.out
    assert objects(place.target, "raw") == {"orders"}


def test_a_live_job_is_named_and_nothing_goes(place: Place) -> None:
    with held(place) as claim:
        before = contents(place.target, place.control)
        refused = uninstall(place, "--yes")
        assert refused.code == BUSY
        assert str(claim.job_id) in refused.err
        assert f"process {os.getpid()}" in refused.err
        assert contents(place.target, place.control) == before


def test_a_dead_job_is_no_obstacle(place: Place) -> None:
    with held(place, alive=False):
        assert uninstall(place, "--yes").code == DONE
    assert schemas(place.control) == {"public"}


def test_a_ledger_in_use_is_not_waited_for_for_ever(place: Place) -> None:
    with place.target.connect() as session, session.transaction():
        session.execute("SELECT * FROM tidegate.fences FOR UPDATE")
        refused = uninstall(place, "--yes")
    assert refused.code == BUSY
    assert "in use by another session" in refused.err
    assert recorded(place) == ALL


def test_of_a_ledger_that_others_use_only_our_own_goes(place: Place, make_place: MakePlace) -> None:
    foreign = uuid4()
    mine, theirs = stage(place), stage(place, foreign)
    place.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name, version)"
        " VALUES ('other.items', 'raw.items', 1), ('shop.eu.items', 'raw.eu', 1),"
        " ('shop.lent', 'raw.lent', 1)",
        "INSERT INTO tidegate.watermark_log (pipeline_name, table_name, generation, version,"
        " update_id, moved_by, reason) VALUES ('other.items', 'raw.items', 0, 1, 'u', 'x', 'y')",
        "INSERT INTO tidegate.table_updates VALUES ('u', 'raw.items')",
        f"INSERT INTO tidegate.fences VALUES ('raw.items', '{foreign}', 1, 'a'),"
        f" ('raw.lent', '{foreign}', 1, 'a')",
    )
    done = uninstall(place, "warehouse", "--yes")
    assert done.code == DONE, done
    assert "only what is of project shop" in done.out
    assert "project other" in done.out
    assert "project shop.eu" in done.out
    assert f"control plane {foreign}" in done.out
    assert f"staging table tidegate.{mine}" in done.out
    assert theirs not in done.out
    assert "--shared removes all of it" in done.out
    left = place.target.execute("SELECT pipeline_name FROM tidegate.etl_state ORDER BY 1")
    assert left == [("other.items",), ("shop.eu.items",), ("shop.lent",)]
    assert place.target.value("SELECT count(*) FROM tidegate.watermark_log") == 1
    assert place.target.execute("SELECT update_id FROM tidegate.table_updates") == [("u",)]
    assert place.target.value("SELECT array_agg(resource ORDER BY 1) FROM tidegate.fences") == [
        "raw.items",
        "raw.lent",
    ]
    assert theirs in objects(place.target, "tidegate")
    assert mine not in objects(place.target, "tidegate")
    assert schemas(place.control) == {"public", "tidegate_control"}
    shared = uninstall(place, "--yes", "--shared")
    assert "WILL BE GONE ALSO FOR project other" in shared.out
    assert schemas(place.target) == {"public", "raw"}


def test_of_a_control_database_that_others_use_only_our_own_goes(
    place: Place, make_place: MakePlace
) -> None:
    with held(place, alive=False):
        pass
    place.control.execute(
        "INSERT INTO tidegate_control.jobs"
        " (job_id, project, kind, name, resource, payload, submitted_by)"
        " SELECT gen_random_uuid(), project, 'sync', 'items', 'r', '{}', 'x'"
        " FROM unnest(ARRAY['other', 'shop']) AS p(project)",
        "INSERT INTO tidegate_control.job_queue (job_id, project, kind)"
        " SELECT job_id, project, kind FROM tidegate_control.jobs WHERE status = 'pending'",
        "INSERT INTO tidegate_control.cursor_observations VALUES ('shop.eu.items', now(), '1')",
        "INSERT INTO tidegate_control.notices (notice_id, channel, project, name, document)"
        " SELECT gen_random_uuid(), 'webhook', project, 'items', '{}'"
        " FROM unnest(ARRAY['other', 'shop']) AS p(project)",
    )
    done = uninstall(place, "control", "--yes", "--json")
    assert done.code == DONE, done
    (control,) = done.document["found"]
    assert (control["whole"], control["shared_with"]) == (
        False,
        ["project other", "project shop.eu"],
    )
    assert [(part["name"], part["rows"]) for part in control["parts"]] == [
        ("tidegate_control.jobs", 2),
        ("tidegate_control.job_audit", 2),
        ("tidegate_control.cursor_observations", 1),
        ("tidegate_control.notices", 1),
    ]
    for table in ("jobs", "job_queue", "notices"):
        left = place.control.execute(f"SELECT project FROM tidegate_control.{table}")
        assert left == [("other",)], table
    left = place.control.execute("SELECT pipeline FROM tidegate_control.cursor_observations")
    assert left == [("shop.eu.items",)]
    assert recorded(place)["watermarks"] == 1


def test_the_history_of_others_stays(make_place: MakePlace) -> None:
    pipelines = "import tidegate as tg\n@tg.task\ndef ping(ctx): ...\n"
    place = make_place(ORDERS, pipelines=pipelines)
    other = make_place(ORDERS, beside=place, name="other", pipelines=pipelines)
    for one in (place, other):
        with one.open() as project:
            assert project.run_task("ping").exit_code == 0
    done = uninstall(place, "control", "--yes", "--json")
    parts = {part["name"]: part["rows"] for part in done.document["found"][0]["parts"]}
    assert parts["tidegate_control.tasks"] == 1
    left = place.control.execute(
        "SELECT t.project, count(e.task_id) > 0 FROM tidegate_control.tasks t"
        " FULL JOIN tidegate_control.task_events e ON e.task_id = t.id GROUP BY 1"
    )
    assert left == [("other", True)]


def test_another_projects_live_job_keeps_the_shared_control_database(
    place: Place, make_place: MakePlace
) -> None:
    with held(place):
        other = make_place(ORDERS, beside=place, name="other")
        refused = uninstall(other, "control", "--yes", "--shared")
        assert refused.code == BUSY
        assert uninstall(other, "control", "--yes").code == DONE
    assert recorded(place) == ALL


def test_what_hangs_on_our_tables_keeps_them(place: Place) -> None:
    place.target.execute("CREATE VIEW public.progress AS SELECT * FROM tidegate.etl_state")
    refused = uninstall(place, "--yes")
    assert refused.code == FAILED
    assert "view public.progress depends on table tidegate.etl_state" in refused.err
    assert recorded(place) == ALL


def test_a_database_that_cannot_be_searched_is_named(place: Place, make_place: MakePlace) -> None:
    connections = {
        "gone": "host=127.0.0.1 port=1 user=x dbname=x",
        "warehouse": place.target.conninfo,
        "twin": place.target.conninfo,
    }
    bare = make_place(beside=place, connections=connections)
    done = uninstall(bare, "--yes", "--json")
    assert done.code == DONE
    assert [one["connection"] for one in done.document["found"]] == ["warehouse", "control"]
    assert "cannot connect" in done.document["not_searched"]["gone"]
    assert uninstall(bare, "gone", "--yes").code == FAILED
    unknown = uninstall(bare, "warehose", "--yes")
    assert unknown.code == USAGE
    assert "warehouse" in unknown.err


def test_the_control_plane_alone_says_what_that_means(place: Place) -> None:
    done = uninstall(place, "control", "--yes")
    assert done.code == DONE
    assert "--take-over" in done.err
    assert place.target.value("SELECT count(*) FROM tidegate.etl_state") == 1


def test_one_schema_for_ledger_and_control_goes_too(make_place: MakePlace) -> None:
    place = make_place(ORDERS, ledger={"schema": "tg"})
    toml = place.folder / "tidegate.toml"
    toml.write_text(toml.read_text().replace("[project]", '[project]\ncontrol_schema = "tg"'))
    context = place.open().context
    context.control_id()
    context.ledger("warehouse").ensure()
    assert schemas(place.target) == {"public", "tg"}
    done = uninstall(place, "--yes", "--json")
    assert done.code == DONE, done
    assert [one["kept"] for one in done.document["found"]] == [[], []]
    assert schemas(place.target) == {"public"}


def test_the_public_schema_stays(make_place: MakePlace) -> None:
    place = make_place(ORDERS, databases=2, ledger={"schema": "public"})
    place.open().context.ledger("warehouse").ensure()
    place.open().context.control_id()
    assert uninstall(place, "--yes").code == DONE
    assert "public" in schemas(place.target)
    assert objects(place.target, "public") == set()


def test_after_it_a_run_starts_from_nothing_and_a_filled_table_takes_it(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = make_place(ORDERS, databases=3)
    fill(place)
    first = place.open(warm_spark).run("orders")
    assert first.rows == 10
    assert uninstall(place, "--yes").code == DONE
    status = tidegate(place.folder, "status", "--json").document["syncs"][0]
    assert (status["state"], status["watermark"]) == ("never ran", None)
    again = place.open(warm_spark).run("orders")
    assert (again.rows, again.outcome.changed) == (10, 0)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10
    assert uninstall(place, "--yes").code == DONE
    assert tidegate(place.folder, "adopt", "orders", "--from-target-max").code == DONE
    assert place.open(warm_spark).run("orders").rows == 3
