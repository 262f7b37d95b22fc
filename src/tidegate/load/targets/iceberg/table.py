"""Create, check and widen the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

from tidegate.config.sync import DriftPolicy, Layout, Mode, Rules
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DriftRefused, TargetGone
from tidegate.core.identity import sync_of
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.core.watermark import Watermark
from tidegate.iceberg import statements
from tidegate.iceberg.catalog import Catalog, backticked
from tidegate.iceberg.session import IcebergSession
from tidegate.iceberg.table import IcebergField, IcebergTable, branch_name
from tidegate.load.modes import MODES
from tidegate.load.target import refuse_deletes
from tidegate.load.targets.iceberg.commit import LakeApplication

# Small changes to a large table are written as they are; maintenance folds them in later.
DEFAULTS = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}
_WIDER = {("int", "bigint"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


def missing_table(
    table: IcebergTable | None, relation: Relation, watermark: Watermark, project: str
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
    table: IcebergTable | None, relation: Relation, watermark: Watermark, project: str
) -> None:
    """The same as far as the metadata tells it."""
    if table is None or table.has_rows() is False:
        raise missing_table(table, relation, watermark, project)


def adds_unrecorded(mode: Mode, watermark: Watermark) -> bool:
    """Whether a load would add its rows, with or without a key, and is the first that is known."""
    return MODES[mode].only_adds and watermark.version == 0


def ensure_target(
    table: IcebergTable | None,
    open_session: Callable[[], AbstractContextManager[IcebergSession]],
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
    table: IcebergTable, shape: Shape, rules: Rules
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What a load does to the table before it; refused where the table is frozen."""
    added, widened = find_changes(table, shape)
    if rules.drift is DriftPolicy.FREEZE and (added or widened):
        names = ", ".join([*(name for name, _ in added), *(name for name, _ in widened)])
        raise DriftRefused(
            f"the columns of the source changed ({names}), and {table.relation} is frozen",
            'set drift = "evolve", or leave the columns out',
        )
    return added, widened


def find_changes(
    table: IcebergTable, shape: Shape
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


def _refuse_missing(table: IcebergTable, missing: list[IcebergField]) -> None:
    names = ", ".join(one.name for one in missing)
    raise DriftRefused(
        f"{table.relation} requires {names}, which the rows do not bring",
        "load the columns, or make them optional: ALTER TABLE … ALTER COLUMN … DROP NOT NULL",
    )


_ATTEMPT = "<attempt>"


def create_parts(shape: Shape, layout: Layout) -> tuple[str, ...]:
    """The columns of a table that is still to be made, and how its files are laid out."""
    columns = tuple(f"{backticked(column.name)} {column.target_type}" for column in shape.columns)
    found = [*columns]
    if layout.partition_by:
        found.append(
            f"PARTITIONED BY ({', '.join(one.render(backticked) for one in layout.partition_by)})"
        )
    if layout.sort_by:
        found.append(
            f"WRITE ORDERED BY ({', '.join(one.render(backticked) for one in layout.sort_by)})"
        )
    return tuple(found)


def alter_statements(
    catalog: Catalog,
    relation: Relation,
    added: list[tuple[str, str]],
    widened: list[tuple[str, str]],
) -> tuple[str, ...]:
    """What an additive evolution runs before the load."""
    found = [statements.add_columns(catalog, relation, added)] if added else []
    found += [statements.widen_column(catalog, relation, *one) for one in widened]
    return tuple(found)


def publish_steps(
    catalog: Catalog,
    relation: Relation,
    table: IcebergTable | None,
    shape: Shape,
    rules: Rules,
    batch: Batch | None,
    *,
    layout: Layout,
    classic: bool,
) -> tuple[str, ...]:
    """The commit upon the attempt's branch, then the one that moves main to it.

    `classic` where Iceberg's own interface is at hand, as opposed to Spark Connect.
    """
    branch = branch_name(_ATTEMPT)
    into = statements.branch_table(catalog, relation, branch)
    application = LakeApplication(
        shape,
        rules,
        full=batch is not None and batch.kind is BatchKind.FULL,
        # Where the metadata does not tell, it has most likely.
        has_rows=table is not None and table.has_rows() is not False,
        is_plain=layout.divides_nothing if table is None else table.is_plain,
        is_classic=classic,
    )
    step = f"append the staged files to {into} as they are"
    if not application.registers:
        step = application.statement(into, backticked(statements.STAGED))
    return (step, statements.fast_forward(catalog, relation, branch))
