"""Whose a pipeline is."""

from __future__ import annotations

import pytest

from tidegate.admin.inventory import LedgerEntry, Ownership, RecordedSync
from tidegate.config.sync import TargetTemplate
from tidegate.core.identity import DatabaseIdentity, resource_name
from tidegate.core.relation import Relation

HERE, ELSEWHERE = DatabaseIdentity("1", "here"), DatabaseIdentity("1", "elsewhere")
TABLE = Relation("raw", "c")


def recorded(project: str, name: str, database: DatabaseIdentity = HERE) -> RecordedSync:
    return RecordedSync(project, name, resource_name(database, TABLE))


def template(text: str) -> TargetTemplate:
    found = TargetTemplate.parse(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pipeline", "project"),
    [("a.c", "a"), ("a.b.c", "a.b"), ('a.b."x.y"', "a.b"), ('a.b."x"".y"', "a.b")],
)
def test_without_evidence_a_sync_has_no_dot(pipeline: str, project: str) -> None:
    assert Ownership("a").owners(pipeline) == {project}


def test_a_job_tells_whose_a_pipeline_is() -> None:
    ownership = Ownership.of("a.b", {}, [recorded("a", "b.c"), recorded("a.b", "x")])
    assert ownership.owners("a.b.c") == {"a"}
    assert ownership.owns("a.b.x")


def test_the_table_tells_two_projects_with_one_pipeline_apart() -> None:
    ownership = Ownership.of("a", {}, [recorded("a", "b.c"), recorded("a.b", "c", ELSEWHERE)])
    assert ownership.owns("a.b.c", LedgerEntry(HERE, TABLE))
    assert ownership.owners("a.b.c", LedgerEntry(ELSEWHERE, TABLE)) == {"a.b"}


def test_what_two_projects_share_is_nobodys_own() -> None:
    ownership = Ownership.of("a", {}, [recorded("a", "b.c"), recorded("a.b", "c")])
    assert ownership.owners("a.b.c", LedgerEntry(HERE, TABLE)) == {"a", "a.b"}
    assert not ownership.owns("a.b.c", LedgerEntry(HERE, TABLE))
    assert not ownership.owns("a.b.c")


def test_a_database_that_was_restored_is_known_by_the_name_of_the_pipeline() -> None:
    ownership = Ownership.of("a", {}, [recorded("a", "b.c")])
    assert ownership.owns("a.b.c", LedgerEntry(DatabaseIdentity("2", "here"), TABLE))


def test_a_table_of_a_declared_group_is_the_projects_unless_a_job_says_otherwise() -> None:
    groups = {"b": template("warehouse:raw.{table}")}
    assert Ownership("a", groups).owns("a.b.c", LedgerEntry(HERE, TABLE))
    assert not Ownership("a", groups).owns("a.b.c", LedgerEntry(HERE, Relation("other", "c")))
    assert not Ownership("a", groups).owns("a.bb.c", LedgerEntry(HERE, TABLE))
    others = Ownership.of("a", groups, [recorded("a.b", "c")])
    assert others.owners("a.b.c", LedgerEntry(HERE, TABLE)) == {"a.b"}
