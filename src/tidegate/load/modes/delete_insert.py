"""delete_insert: the rows with the batch's keys, or of one part of the target, are replaced."""

from __future__ import annotations

from tidegate.load.modes.load_mode import LoadMode
from tidegate.load.targets.iceberg.statement import IcebergStatement
from tidegate.load.targets.postgres.steps import ApplyStep, PostgresSteps


def _postgres(steps: PostgresSteps) -> list[ApplyStep]:
    if steps.rules.replaces_part:
        # The part is emptied, also where no row comes in its place.
        gone = [] if steps.first else [steps.clear_part()]
        return gone if steps.rows is None else [*gone, steps.insert()]
    if steps.first:
        return [steps.insert()]
    if not steps.shape.key:
        return [steps.clear(), steps.insert()]
    return [*steps.remove_gone(), steps.remove_same(), steps.insert()]


def _iceberg(statement: IcebergStatement) -> str:
    if statement.rules.replaces_part:
        return statement.replace_part()
    if not statement.shape.key:
        return statement.overwrite()
    return statement.merge(newest_wins=False)


DELETE_INSERT = LoadMode(
    postgres=_postgres,
    iceberg=_iceberg,
    needs_key=True,
    repairable=True,
)
