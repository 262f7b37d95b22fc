"""What a publish would run in a lake, in words for those who only look."""

from __future__ import annotations

from tidegate.destinations.lake_application import LakeApplication
from tidegate.lake import statements
from tidegate.lake.catalog import Catalog, backticked
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import LakeTable, branch_name
from tidegate.model.layout import Layout
from tidegate.model.relation import Relation
from tidegate.model.rules import Rules
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
