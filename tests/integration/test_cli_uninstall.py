"""`tidegate db uninstall`: what Tidegate made goes, target tables and others' things stay."""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done
from integration.conftest import Database, MakePlace, Place, open_without_spark
from integration.here import answer_tidegate, tidegate
from integration.left_behind import ALL, fill, held, loaded, recorded
from integration.orders import ORDERS, contents
from tidegate.core.identity import new_attempt_id, new_write_id, staging_table


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
    asked = answer_tidegate(place.folder, "n", "db", "uninstall")
    assert (asked.code, "remove this? [y/N]" in asked.said) == (FAILED, True)
    assert contents(place.source, place.target, place.control) == before

    done = answer_tidegate(place.folder, "y", "db", "uninstall")
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


@pytest.mark.parametrize(
    ("ledger", "control_schema", "left"),
    [
        ({}, None, {"public"}),
        ({"schema": "tg"}, "tg", {"public"}),
        pytest.param({"schema": "public"}, None, {"public"}, marks=pytest.mark.chaos),
        ({"marker_table": "raw.done"}, None, {"public", "raw"}),
    ],
    ids=["apart", "one schema for both", "public", "markers elsewhere"],
)
def test_what_we_make_goes_wherever_it_was_asked_to_be(
    make_place: MakePlace, ledger: dict[str, Any], control_schema: str | None, left: set[str]
) -> None:
    place = make_place(ORDERS, ledger=ledger, installed=control_schema is None)
    if control_schema is not None:
        toml = place.folder / "tidegate.toml"
        line = f'[project]\ncontrol_schema = "{control_schema}"'
        toml.write_text(toml.read_text().replace("[project]", line))
    for schema in left - {"public"}:
        place.target.execute(f"CREATE SCHEMA {schema}")
    context = place.open().context
    context.control_id()
    context.ledger("warehouse").ensure()
    done = uninstall(place, "--yes", "--json")
    assert done.code == DONE, done
    assert [one["kept"] for one in done.document["found"]] == [[], []]
    assert schemas(place.target) == left
    assert not any(objects(place.target, schema) for schema in left)


def test_what_others_made_in_our_schemas_stays(place: Place) -> None:
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

    # So do tables that only have our names.
    place.target.execute(
        "CREATE TABLE tidegate.fences (garden text, metres int)",
        "CREATE TABLE tidegate.table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp)",
    )
    assert uninstall(place, "--yes").code == DONE
    assert objects(place.target, "tidegate") == {"notes", "fences", "table_updates"}


@pytest.mark.parametrize("schema", ["public", pytest.param("tidegate", marks=pytest.mark.chaos)])
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


def test_whatever_stands_in_the_way_nothing_goes(place: Place, make_place: MakePlace) -> None:
    with held(place) as claim:
        before = contents(place.target, place.control)
        refused = uninstall(place, "--yes")
        assert refused.code == BUSY
        assert str(claim.job_id) in refused.err
        assert f"process {os.getpid()}" in refused.err
        # It keeps the control database that another project shares, too.
        other = make_place(ORDERS, beside=place, name="other")
        assert uninstall(other, "control", "--yes", "--shared").code == BUSY
        assert uninstall(other, "control", "--yes").code == DONE
        assert contents(place.target, place.control) == before
    place.control.execute("DELETE FROM tidegate_control.jobs")

    with place.target.connect() as session, session.transaction():
        session.execute("SELECT * FROM tidegate.fences FOR UPDATE")
        refused = uninstall(place, "--yes")
    assert refused.code == BUSY
    assert "in use by another session" in refused.err
    place.target.execute("CREATE VIEW public.progress AS SELECT * FROM tidegate.etl_state")
    refused = uninstall(place, "--yes")
    assert refused.code == FAILED
    assert "view public.progress depends on table tidegate.etl_state" in refused.err
    assert recorded(place) == ALL
    place.target.execute("DROP VIEW public.progress")

    # A dead job is no obstacle.
    with held(place, alive=False):
        assert uninstall(place, "--yes").code == DONE
    assert schemas(place.control) == {"public"}


def test_of_a_ledger_that_others_use_only_our_own_goes(place: Place) -> None:
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


def test_of_a_control_database_that_others_use_only_our_own_goes(place: Place) -> None:
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


def test_what_cannot_be_searched_is_named_and_the_control_plane_may_go_alone(
    place: Place, make_place: MakePlace
) -> None:
    connections = {
        "gone": "host=127.0.0.1 port=1 user=x dbname=x",
        "warehouse": place.target.conninfo,
        "twin": place.target.conninfo,
    }
    bare = make_place(beside=place, connections=connections)
    alone = uninstall(bare, "control", "--yes")
    assert alone.code == DONE
    assert "--take-over" in alone.err
    assert place.target.value("SELECT count(*) FROM tidegate.etl_state") == 1
    assert uninstall(bare, "gone", "--yes").code == FAILED
    unknown = uninstall(bare, "warehose", "--yes")
    assert unknown.code == USAGE
    assert "warehouse" in unknown.err
    done = uninstall(bare, "--yes", "--json")
    assert done.code == DONE
    assert [one["connection"] for one in done.document["found"]] == ["warehouse"]
    assert "cannot connect" in done.document["not_searched"]["gone"]


@pytest.mark.chaos
def test_after_it_a_run_starts_from_nothing_and_a_filled_table_takes_it(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS, databases=3)
    fill(place)
    assert open_without_spark(place).run("orders").rows == 10
    assert uninstall(place, "--yes").code == DONE
    status = tidegate(place.folder, "status", "--json").document["syncs"][0]
    assert (status["state"], status["watermark"]) == ("never ran", None)
    again = open_without_spark(place).run("orders")
    assert (again.rows, again.outcome.changed) == (10, 0)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10
