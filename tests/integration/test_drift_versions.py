"""Drift of a target that keeps every version behind a view."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from integration.conftest import Database
from integration.destination_conformance import load
from integration.drifted import BEFORE, EVOLVE, FREEZE, Target, columns, loaded
from integration.orders import CREATE, ORDERS
from integration.without_spark import Make, make
from tidegate import failpoints
from tidegate.model.rules import Mode, Rules

__all__ = ["make"]


class TestVersions:
    """Append with a key: the raw table changes, and its view with it."""

    @pytest.fixture
    def target(self, database: Database) -> Target:
        rules = Rules(mode=Mode.APPEND)
        return loaded(database, columns(BEFORE), (1, "a", 1, 1), rules=rules)

    def test_a_new_column_is_in_the_view_too(self, target: Target) -> None:
        target.load(
            columns("id integer, x text, name text, n integer, c bigint"), (1, "x", "b", 1, 2)
        )
        assert target.rows("id, name, n, c, x") == [(1, "b", 1, 2, "x")]

    def test_a_dropped_column_stays_in_the_view(self, target: Target) -> None:
        target.load(columns("id integer, name text, c bigint"), (2, "b", 2))
        assert target.rows("id, name, n") == [(1, "a", 1), (2, "b", None)]

    def test_a_widened_column_is_wider_in_the_view_which_keeps_its_trimmings(
        self, target: Target
    ) -> None:
        view, database = target.harness.table, target.harness.database
        role = f"reader_{target.harness.destination.relation.name}"
        database.execute(
            f"CREATE ROLE {role}",
            f"GRANT SELECT ON {view} TO {role} WITH GRANT OPTION",
            f"GRANT SELECT ON {view} TO PUBLIC",
            f"ALTER VIEW {view} SET (security_barrier = true)",
            f"COMMENT ON VIEW {view} IS 'the newest'",
        )
        look = (
            "SELECT relacl::text, reloptions, obj_description(oid, 'pg_class') FROM pg_class"
            f" WHERE oid = '{view}'::regclass"
        )
        before = database.execute(look)
        try:
            shape = columns("id integer, name text, n bigint, c bigint, x text")
            target.load(shape, (1, "a", 2**40, 2, "x"))
            assert target.rows("id, n, x") == [(1, 2**40, "x")]
            assert database.execute(look) == before
        finally:
            database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    def test_a_column_added_by_hand_appears_in_the_view_under_freeze(self, target: Target) -> None:
        shape = columns(BEFORE + ", x text")
        assert "column x text is new" in target.refused(shape, FREEZE)
        target.harness.database.execute(f"ALTER TABLE {target.harness.physical} ADD x text")
        target.prepare(shape, FREEZE)
        load(target.harness, (1, "a", 1, 2, "x"))
        assert target.rows("id, x") == [(1, "x")]

    def test_a_column_renamed_by_hand_is_renamed_in_the_view(self, target: Target) -> None:
        target.harness.database.execute(
            f"ALTER TABLE {target.harness.physical} RENAME name TO title"
        )
        target.load(columns("id integer, title text, n integer, c bigint"), (2, "b", 2, 2))
        assert target.rows("id, title") == [(1, "a"), (2, "b")]
        assert "name" not in [
            row[0]
            for row in target.harness.database.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid ="
                f" '{target.harness.table}'::regclass"
            )
        ]

    def test_a_view_on_the_view_stops_a_change_of_type(self, target: Target) -> None:
        target.harness.database.execute(f"CREATE VIEW over AS SELECT n FROM {target.harness.table}")
        said = target.refused(columns("id integer, name text, n bigint, c bigint"), EVOLVE)
        assert "other objects depend on it" in said
        assert "view public.over depends on view" in said

    def test_a_column_that_comes_back_with_another_type_is_changed_by_what_is_said(
        self, target: Target
    ) -> None:
        target.load(columns("id integer, name text, c bigint"), (1, "a", 2))
        shape = columns("id integer, name text, n uuid, c bigint")
        said = target.refused(shape, EVOLVE)
        statements = re.search(r"DROP VIEW .*", said)
        assert statements is not None, said
        target.harness.database.execute(*statements.group().splitlines()[0].split("; "))
        target.load(shape, (1, "b", UUID(int=1), 3))
        assert target.rows("id, n") == [(1, UUID(int=1))]


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("refresh", [False, True])
def test_a_first_load_that_was_cut_short_follows_its_source(
    make: Make, monkeypatch: pytest.MonkeyPatch, mode: str, refresh: bool
) -> None:
    project, place = make({**ORDERS, "mode": mode}, databases=2)
    place.source.execute(*CREATE, "INSERT INTO orders SELECT generate_series(1, 9)")
    monkeypatch.setattr(failpoints, "_armed", failpoints._parse("stage.write=raise"))
    monkeypatch.setattr(failpoints, "_passages", 0)
    with pytest.raises(Exception, match=r"stage\.write"):
        project.run("orders", full_refresh=refresh)
    monkeypatch.undo()
    place.source.execute("ALTER TABLE orders ADD extra text DEFAULT 'x'")
    project.run("orders")
    assert place.target.value("SELECT count(*) FROM raw.orders WHERE extra = 'x'") == 9
