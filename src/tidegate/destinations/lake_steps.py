"""What a publish would run in a lake, in words for those who only look."""

from __future__ import annotations

from tidegate.lake import statements
from tidegate.lake.catalog import Catalog, backticked
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import LakeTable, branch_name
from tidegate.model.layout import Layout
from tidegate.model.relation import Relation
from tidegate.model.rules import Duplicates, Mode, Rules
from tidegate.model.shape import Shape

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
    table: LakeTable | None,
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
    full = batch is not None and batch.kind is BatchKind.FULL
    before = 0 if table is None else table.rows()
    plain = not (layout.partition_by or layout.sort_by) if table is None else table.is_plain
    newest = rules.duplicates is Duplicates.NEWEST and rules.mode is not Mode.APPEND
    folds = newest and bool(shape.key) and not shape.key_is_unique
    only_adds = not before or (rules.mode is Mode.APPEND and not full)
    rows = backticked(statements.STAGED)
    if only_adds and not folds and plain and classic:
        step = f"append the staged files to {into} as they are"
    else:
        rows = statements.newest_rows(rows, shape) if folds else rows
        if only_adds or not shape.key or rules.mode is Mode.APPEND:
            overwrite = bool(before) and not only_adds
            step = statements.insert_rows(into, rows, shape, overwrite=overwrite)
        else:
            newest_wins = rules.mode is Mode.MERGE and not full
            step = statements.merge_rows(into, rows, shape, newest_wins=newest_wins, full=full)
    return (step, statements.fast_forward(catalog, relation, branch))
