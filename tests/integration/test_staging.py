"""Staging: one table per writer call, swept only by its own control plane and only when dead."""

from __future__ import annotations

from functools import partial
from uuid import UUID, uuid4

import pytest

from integration.conftest import Database
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.staging import Staging
from tidegate.model.identity import new_attempt_id
from tidegate.model.staging import new_write_id, staging_table
from tidegate.postgres.connect import connect

OURS, THEIRS = uuid4(), uuid4()


@pytest.fixture
def staging(database: Database) -> Staging:
    ledger = Ledger(connect=partial(connect, database.conninfo, name="the destination"))
    ledger.ensure()
    return Staging(ledger)


def stage(database: Database, control_id: UUID, attempt_id: str) -> str:
    table = staging_table(control_id, attempt_id, new_write_id())
    database.execute(f'CREATE UNLOGGED TABLE tidegate."{table}" (n int)')
    return table


def left(database: Database) -> set[str]:
    rows = database.execute("SELECT relname FROM pg_class WHERE relname LIKE 'stg\\_%'")
    return {row[0] for row in rows}


def test_a_sweep_drops_only_dead_attempts_of_its_own_control_plane(
    database: Database, staging: Staging
) -> None:
    dead, live, other = new_attempt_id(), new_attempt_id(), new_attempt_id()
    for _ in range(2):
        stage(database, OURS, dead)
    kept = {stage(database, OURS, live), stage(database, THEIRS, other)}
    database.execute("CREATE TABLE tidegate.stg_mine (n int)")
    with database.connect() as session:
        assert staging.sweep(session, OURS, lambda: {live}) == 2
        assert left(database) == {*kept, "stg_mine"}
        assert staging.sweep(session, OURS, lambda: {live}) == 0


def test_an_attempt_that_starts_during_a_sweep_keeps_its_tables(
    database: Database, staging: Staging
) -> None:
    """It claims and stages after the sweep began: not on a list made earlier, not to be dropped."""
    dead, late = new_attempt_id(), new_attempt_id()
    stage(database, OURS, dead)

    def live_attempts() -> set[str]:
        stage(database, OURS, late)
        return set()

    with database.connect() as session:
        assert staging.sweep(session, OURS, live_attempts) == 1
        assert staging.tables(session, OURS, late)
        assert not staging.tables(session, OURS, dead)


def test_an_attempt_discards_its_own_tables_and_no_others(
    database: Database, staging: Staging
) -> None:
    mine, other = new_attempt_id(), new_attempt_id()
    stage(database, OURS, mine)
    kept = {stage(database, OURS, other), stage(database, THEIRS, mine)}
    with database.connect() as session:
        assert staging.discard(session, OURS, mine) == 1
    assert left(database) == kept


def test_a_table_that_is_still_written_is_left_to_the_next_sweep(
    database: Database, staging: Staging
) -> None:
    attempt = new_attempt_id()
    busy, free = (stage(database, OURS, attempt) for _ in range(2))
    with database.connect() as writer, database.connect() as session:
        writer.execute("BEGIN")
        writer.execute(f'INSERT INTO tidegate."{busy}" VALUES (1)')
        assert staging.sweep(session, OURS, set) == 1
        assert left(database) == {busy}
        writer.execute("ROLLBACK")
        assert staging.sweep(session, OURS, set) == 1
    assert left(database) == set()
    assert free not in left(database)


def test_without_a_ledger_there_is_nothing_to_sweep(database: Database) -> None:
    ledger = Ledger(connect=partial(connect, database.conninfo, name="x"), schema="nowhere")
    with database.connect() as session:
        assert Staging(ledger).sweep(session, OURS, set) == 0
