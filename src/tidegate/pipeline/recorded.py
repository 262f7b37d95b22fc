"""What a table of a group was loaded with before: it wins over what would be proposed today.

A new column called updated_at must not stop a nightly run, nor silently change what its watermark
means. So a table stays with the key and the cursor of its loads until somebody asks for a full
refresh; only where that is no longer possible, the run is refused as any changed declaration is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidegate.errors import TidegateError
from tidegate.model.column import Table
from tidegate.model.group import Group
from tidegate.model.identity import pipeline_name, sync_of
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.rules import Mode
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Recorded:
    """Key and cursor of the loads so far; `key` is None where the table has no such key now."""

    cursor: str | None
    key: tuple[str, ...] | None


def recorded(watermark: Watermark | None, table: Table) -> Recorded | None:
    """What the ledger remembers, as far as the table can still be read with it."""
    if watermark is None or watermark.version == 0 or not watermark.declaration:
        return None
    cursor = watermark.declaration.get("cursor")
    key = tuple(watermark.declaration.get("key", ()))
    if cursor is not None and table.column(cursor) is None:
        return None
    possible = not key or table.proves_unique(key)
    return Recorded(cursor, key if possible else None)


def recorded_syncs(group: Group, watermarks: Iterable[Watermark]) -> list[Sync]:
    """The tables of a group that the ledger knows, for when the source cannot be asked."""
    prefix = pipeline_name(group.project, group.name) + "."
    found: list[Sync] = []
    for watermark in watermarks:
        if not watermark.pipeline.startswith(prefix):
            continue
        declaration: Mapping[str, object] = watermark.declaration or {}
        try:
            source = Endpoint.parse(str(declaration.get("source")))
        except TidegateError:
            source = group.template.source
        cursor = declaration.get("cursor")
        found.append(
            replace(
                group.template,
                name=sync_of(group.project, watermark.pipeline),
                source=source,
                target=Endpoint(group.target.connection, Relation.parse(watermark.table)),
                mode=group.template.mode if cursor else Mode.REPLACE,
                cursor=str(cursor) if cursor else None,
                group=group.name,
            )
        )
    return found
