"""merge: new keys are inserted, changed rows updated, and the newer of two rows wins."""

from __future__ import annotations

from tidegate.load.modes.load_mode import LoadMode
from tidegate.load.targets.iceberg.statement import IcebergStatement
from tidegate.load.targets.postgres.steps import ApplyStep, PostgresSteps


def upsert_steps(steps: PostgresSteps) -> list[ApplyStep]:
    """Deleted rows go, then the others are put in place of what is there."""
    if steps.first:
        return [steps.insert()]
    if not steps.shape.key:
        return [steps.clear(), steps.insert()]
    return [*steps.remove_gone(), steps.upsert()]


def upsert_statement(statement: IcebergStatement) -> str:
    """The same in one statement."""
    if not statement.shape.key:
        return statement.overwrite()
    return statement.merge(newest_wins=statement.newest_wins)


def _hides_updates(cursor: str | None, *, key_is_proven: bool) -> str | None:
    if key_is_proven:
        return None
    return (
        "nothing proves that the key is unique, so a row of the lookback never replaces one with a "
        f"higher {cursor}: an update that a slow clock stamped below the version before it is not "
        "taken"
    )


MERGE = LoadMode(
    postgres=upsert_steps,
    iceberg=upsert_statement,
    needs_key=True,
    needs_unique_index=True,
    repairable=True,
    hides_updates=_hides_updates,
)
