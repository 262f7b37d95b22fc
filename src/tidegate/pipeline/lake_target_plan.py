"""A plan's part about a lake's table: how it is, what a run would do to it, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.destinations.lake_steps import alter_statements, create_parts, publish_steps
from tidegate.destinations.lake_target import adds_unrecorded, allowed_changes, check_present
from tidegate.destinations.target import unrecorded
from tidegate.lake.catalog import Catalog
from tidegate.lake.metadata import read_table
from tidegate.model.batch import Batch
from tidegate.model.column import Column
from tidegate.model.lake import LakeTable
from tidegate.model.plan import TargetPlan
from tidegate.model.rules import Mode
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.context import Context
from tidegate.postgres.types import lake_type
from tidegate.sources.postgres import PostgresSource

# Types whose values are text already, whatever their length.
_TEXTS = frozenset({"text", "character varying", "character", "bpchar", "name", '"char"', "citext"})


@dataclass(frozen=True, slots=True)
class LakePlan:
    """One sync whose target is a lake's table, as it is now."""

    context: Context
    sync: Sync
    catalog: Catalog
    table: LakeTable | None

    @classmethod
    def read(cls, context: Context, sync: Sync) -> LakePlan:
        catalog = context.catalog(sync.target.connection)
        table = read_table(catalog, sync.target.relation)
        return cls(context, sync, catalog, table)

    def target(self, shape: Shape | None, watermark: Watermark) -> TargetPlan:
        """What is there or is made; refuses as a run would."""
        sync, table = self.sync, self.table
        if sync.mode is not Mode.REPLACE and watermark.rows_synced:
            check_present(table, sync.target.relation, watermark, sync.project)
        if table is not None and adds_unrecorded(sync.mode, watermark) and table.has_rows():
            raise unrecorded(sync.target.relation, watermark, sync.project)
        if table is None:
            columns = () if shape is None else create_parts(shape, self.sync.layout)
            return TargetPlan(exists=False, rows_present=False, create=columns)
        alter: tuple[str, ...] = ()
        if shape is not None:
            changes = allowed_changes(table, shape, sync.rules)
            alter = alter_statements(self.catalog, sync.target.relation, *changes)
        return TargetPlan(exists=True, rows_present=table.rows() > 0, alter=alter)

    def publish(self, shape: Shape | None, batch: Batch | None) -> str | None:
        """What puts staged rows in; unknown until a transformation has run."""
        if shape is None:
            return None
        steps = publish_steps(
            self.catalog,
            self.sync.target.relation,
            self.table,
            shape,
            self.sync.rules
            if batch is None
            else self.sync.rules.for_batch(batch.kind, key_is_unique=shape.key_is_unique),
            batch,
            layout=self.sync.layout,
            classic=self.context.settings.spark.remote is None,
        )
        return "; ".join(steps)


def text_columns(source: PostgresSource) -> list[str]:
    """A warning that names the columns whose values arrive as text."""
    found = [f"{column.name} ({column.type})" for column in source.columns if _becomes_text(column)]
    if not found:
        return []
    return [f"Iceberg has no equal type, so these arrive as string: {', '.join(found)}"]


def _becomes_text(column: Column) -> bool:
    plain = column.wire.partition("(")[0]
    as_text = column.via_text or lake_type(column.wire) == "string"
    return as_text and plain not in _TEXTS
