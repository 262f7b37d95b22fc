"""Whose state it is where names hold dots: table c of group b in project a, sync x of project a.b.

They keep their state under a.b.c and a.b.x.
"""

from __future__ import annotations

import pytest

from integration.commands import DONE
from integration.conftest import MakePlace, Place
from integration.groups import STAMPED
from integration.here import tidegate
from tidegate.spark.session import SparkSessions

GROUP = {"name": "b", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
SYNC = {
    "name": "x",
    "source": "shop:eu.x",
    "target": "warehouse:other.x",
    "cursor": "updated_at",
}


@pytest.fixture
def group(make_place: MakePlace, warm_spark: SparkSessions) -> Place:
    """Project a, whose group b has loaded its tables c and "d.e"."""
    place = make_place(GROUP, name="a", databases=3)
    place.source.execute(
        f"CREATE TABLE c ({STAMPED})",
        f'CREATE TABLE "d.e" ({STAMPED})',
        "INSERT INTO c VALUES (1), (2)",
        "CREATE SCHEMA eu",
        f"CREATE TABLE eu.x ({STAMPED})",
        "INSERT INTO eu.x VALUES (1)",
        'INSERT INTO "d.e" VALUES (1)',
    )
    _run(place, "b", warm_spark)
    return place


@pytest.fixture
def sync(group: Place, make_place: MakePlace, warm_spark: SparkSessions) -> Place:
    """Project a.b in the same databases, whose sync x has loaded a table."""
    place = make_place(SYNC, name="a.b", beside=group)
    _run(place, "x", warm_spark)
    return place


def _run(place: Place, name: str, spark: SparkSessions) -> int:
    report = place.open(spark).run_many(place.open().expand([name]))
    assert not report.failed, report
    return report.rows


def states(place: Place) -> set[tuple[str, ...]]:
    return set(place.target.execute("SELECT pipeline_name, table_name FROM tidegate.etl_state"))


C, D_E, OTHER = ("a.b.c", "raw.c"), ('a.b."d.e"', 'raw."d.e"'), ("a.b.x", "other.x")


def uninstall(place: Place, *what: str) -> list[list[str]]:
    """With whom it was found to be shared, ledger and control plane."""
    done = tidegate(place.folder, "db", "uninstall", *what, "--yes", "--json")
    assert done.code == DONE, done
    return [one["shared_with"] for one in done.document["found"]]


@pytest.mark.parametrize("whose", ["a", "a.b"])
def test_of_two_projects_only_the_ones_own_goes(
    group: Place, sync: Place, warm_spark: SparkSessions, whose: str
) -> None:
    assert states(group) == {C, D_E, OTHER}
    group.source.execute("INSERT INTO c VALUES (3)", "INSERT INTO eu.x VALUES (2)")
    gone, stays = (group, sync) if whose == "a" else (sync, group)
    other = "a.b" if whose == "a" else "a"
    assert uninstall(gone) == [[f"project {other}"]] * 2
    left = {OTHER} if whose == "a" else {C, D_E}
    assert states(group) == left
    log = group.target.execute("SELECT pipeline_name, table_name FROM tidegate.watermark_log")
    assert set(log) == left
    tables = {table for _, table in left}
    for column, ledger in (("target_table", "table_updates"), ("resource", "fences")):
        rows = group.target.execute(f"SELECT DISTINCT {column} FROM tidegate.{ledger}")
        assert {row[0] for row in rows} == tables, ledger
    projects = group.control.execute("SELECT DISTINCT project FROM tidegate_control.jobs")
    assert projects == [(other,)]
    # What stays goes on where it was, and goes with the last project.
    assert _run(stays, "x" if whose == "a" else "b", warm_spark) == 1
    assert uninstall(stays) == [[], []]
    for database, schema in ((group.target, "tidegate"), (group.control, "tidegate_control")):
        assert database.value(f"SELECT to_regnamespace('{schema}')") is None


def test_removing_a_group_leaves_the_sync_of_a_project_that_is_named_like_it(
    group: Place, sync: Place
) -> None:
    done = tidegate(group.folder, "remove", "b", "--yes", "--json")
    assert done.code == DONE, done
    assert {one["target"] for one in done.document["removed"]} == {
        "warehouse:raw.c",
        'warehouse:raw."d.e"',
    }
    assert states(group) == {OTHER}
    again = tidegate(group.folder, "remove", "b.x", "--yes", "--json")
    assert (again.code, again.document["removed"]) == (DONE, [])


def test_a_declared_group_is_known_by_its_targets_where_no_job_is_left(group: Place) -> None:
    group.control.execute(
        "DELETE FROM tidegate_control.jobs",
        "INSERT INTO tidegate_control.cursor_observations VALUES ('a.b.c', now(), '1'),"
        " ('a.b.\"d.e\"', now(), '1'), ('a.x.c', now(), '1')",
    )
    group.target.execute(
        "INSERT INTO tidegate.etl_state (pipeline_name, table_name) VALUES ('a.b.x', 'other.x')"
    )
    assert uninstall(group, "warehouse") == [["project a.b"]]
    assert states(group) == {OTHER}
    # Observations of a group go with its project, and another's stay.
    assert uninstall(group, "control") == [["project a.x"]]
    left = group.control.execute("SELECT pipeline FROM tidegate_control.cursor_observations")
    assert left == [("a.x.c",)]
