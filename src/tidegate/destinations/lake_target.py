"""The table of a lake that a load goes into: made, checked, and widened as far as that is safe."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

from tidegate.destinations.deletes import refuse_deletes
from tidegate.errors import DriftRefused, TargetGone
from tidegate.lake import statements
from tidegate.lake.catalog import backticked
from tidegate.lake.session import LakeSession
from tidegate.model.identity import sync_of
from tidegate.model.lake import Field, LakeTable
from tidegate.model.layout import Layout
from tidegate.model.relation import Relation
from tidegate.model.rules import Drift, Mode, Rules
from tidegate.model.shape import Shape
from tidegate.model.watermark import Watermark

# Small changes to a large table are written as they are; maintenance folds them in later.
DEFAULTS = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}
_WIDER = {("int", "bigint"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


def gone(
    table: LakeTable | None, relation: Relation, watermark: Watermark, project: str
) -> TargetGone:
    """Nobody goes on from a watermark whose rows are not there any more."""
    recorded = f"{watermark.rows_synced} rows are recorded in it" + (
        f" up to {watermark.value}" if watermark.value else ""
    )
    what = "does not exist" if table is None else "is empty"
    return TargetGone(
        f"{relation} {what}, but {recorded}",
        (
            "to load everything again: tidegate run NAME --full-refresh; to go on from elsewhere: "
            "tidegate watermark rewind NAME VALUE --reason …"
        ).replace("NAME", sync_of(project, watermark.pipeline)),
    )


def check_present(
    table: LakeTable | None, relation: Relation, watermark: Watermark, project: str
) -> None:
    """The same as far as the metadata tells it."""
    if table is None or table.has_rows() is False:
        raise gone(table, relation, watermark, project)


def adds_unrecorded(mode: Mode, watermark: Watermark) -> bool:
    """Whether a load would add its rows, with or without a key, and is the first that is known."""
    return mode is Mode.APPEND and watermark.version == 0


def ensure_target(
    table: LakeTable | None,
    open_session: Callable[[], AbstractContextManager[LakeSession]],
    relation: Relation,
    shape: Shape,
    rules: Rules,
    layout: Layout,
) -> tuple[str, ...]:
    """Make the table, or let it follow the rows; returns what the user should know."""
    refuse_deletes(relation, shape, rules)
    if table is None:
        columns = [(column.name, column.target_type) for column in shape.columns]
        with open_session() as session:
            session.run(statements.create_namespace(session.catalog, relation))
            session.run(
                statements.create_table(
                    session.catalog,
                    relation,
                    columns,
                    partition_by=[term.render(backticked) for term in layout.partition_by],
                    properties={**DEFAULTS, **layout.properties},
                )
            )
            if layout.sort_by:
                order = [one.render(backticked) for one in layout.sort_by]
                session.run(statements.order_table(session.catalog, relation, order))
        return ()
    added, widened = allowed_changes(table, shape, rules)
    if not added and not widened:
        return ()
    with open_session() as session:
        if added:
            session.run(statements.add_columns(session.catalog, relation, added))
        for name, kind in widened:
            session.run(statements.widen_column(session.catalog, relation, name, kind))
    return tuple(
        [f"column {name} was added to {relation}" for name, _ in added]
        + [f"column {name} of {relation} is {kind} now" for name, kind in widened]
    )


def allowed_changes(
    table: LakeTable, shape: Shape, rules: Rules
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What a load does to the table before it; refused where the table is frozen."""
    added, widened = find_changes(table, shape)
    if rules.drift is Drift.FREEZE and (added or widened):
        names = ", ".join([*(name for name, _ in added), *(name for name, _ in widened)])
        raise DriftRefused(
            f"the columns of the source changed ({names}), and {table.relation} is frozen",
            'set drift = "evolve", or leave the columns out',
        )
    return added, widened


def find_changes(
    table: LakeTable, shape: Shape
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(columns to add, columns to widen); refuses what would lose something."""
    added: list[tuple[str, str]] = []
    widened: list[tuple[str, str]] = []
    for column in shape.columns:
        known = table.field(column.name)
        if known is None:
            added.append((column.name, column.target_type))
        elif known.type == column.target_type:
            continue
        elif is_wider(known.type, column.target_type):
            widened.append((column.name, column.target_type))
        elif not is_wider(column.target_type, known.type):
            raise DriftRefused(
                f"column {column.name} of {table.relation} is {known.type}, and the rows bring "
                f"{column.target_type}",
                "leave the column out, or cast it in a transformation or a query",
            )
    missing = [one for one in table.fields if one.required and shape.column(one.name) is None]
    if missing:
        _refuse_missing(table, missing)
    return added, widened


def is_wider(old: str, new: str) -> bool:
    """Whether every value of the one type is a value of the other, and Iceberg can promote it."""
    if (old, new) in _WIDER:
        return True
    before, after = _DECIMAL.match(old), _DECIMAL.match(new)
    if before is None or after is None:
        return False
    return before[2] == after[2] and int(before[1]) < int(after[1])


def _refuse_missing(table: LakeTable, missing: list[Field]) -> None:
    names = ", ".join(one.name for one in missing)
    raise DriftRefused(
        f"{table.relation} requires {names}, which the rows do not bring",
        "load the columns, or make them optional: ALTER TABLE … ALTER COLUMN … DROP NOT NULL",
    )
