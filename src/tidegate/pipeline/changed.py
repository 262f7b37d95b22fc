"""A declaration that changed under its name: what was loaded before means something else now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.control.job_records import JobRecords
from tidegate.errors import DeclarationError, TidegateError
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.cursor import CursorType
from tidegate.model.job import SYNC
from tidegate.model.relation import Endpoint
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

_INTEGERS = {CursorType.SMALLINT.value, CursorType.INTEGER.value, CursorType.BIGINT.value}


def declaration(sync: Sync, source: PostgresSource, columns: Any) -> dict[str, Any]:
    """What is remembered with the watermark; of it, columns may drift and the rest may not."""
    found = {
        "columns": columns,
        "source": sync.source_name,
        "cursor": None if source.cursor is None else source.cursor.name,
        "key": list(source.key),
    }
    return found if sync.changes == "cursor" else {**found, "changes": sync.changes}


def declared_still(
    watermark: Watermark, sync: Sync, source: PostgresSource, columns: Any
) -> dict[str, Any]:
    """The same for a load that leaves the watermark where it is: what else is remembered with it,
    of a slot or of transactions, stays."""
    return {**(watermark.declaration or {}), **declaration(sync, source, columns)}


def refuse_changed(watermark: Watermark, source: PostgresSource, sync: Sync) -> None:
    """Refuse to go on from a watermark that another source, cursor or key left."""
    if watermark.version == 0:
        return
    refuse_other(watermark, declaration(sync, source, None), sync)
    if source.cursor is None or watermark.value is None:
        return
    old, new = watermark.cursor_type, source.cursor.type.value
    if old not in (None, new) and not {old, new} <= _INTEGERS:
        raise DeclarationError(
            f"sync {sync.name}: the watermark {watermark.value} is a {old}, but cursor "
            f"{source.cursor.name} is a {new}",
            f"to start again with this cursor: tidegate run {sync.name} --full-refresh",
        )


def refuse_other(watermark: Watermark, now: Mapping[str, Any], sync: Sync) -> None:
    """Refuse a sync that is not declared as it was when it loaded what is there."""
    if watermark.version == 0:
        return
    before = watermark.declaration or {}
    # What was loaded before there was a choice was found by its cursor.
    assumed = "cdc" if "cdc" in before else "cursor"
    changes = {"changes": before.get("changes", assumed)} if "source" in before else {}
    before, now = {**before, **changes}, {"changes": "cursor", **now}
    for name in ("source", "changes", "cursor", "key"):
        if name in before and before[name] != now[name]:
            raise DeclarationError(
                f"sync {sync.name}: its {name} was {_words(before[name])} and is now "
                f"{_words(now[name])}, but rows are loaded up to {watermark.value or 'now'} under "
                "the old one",
                _way_out(sync),
            )


def refuse_moved(context: Context, control: Connection | None, sync: Sync) -> None:
    """Refuse a sync that has loaded another table under its name."""
    found = _tables_before(context, control, sync)
    if found:
        raise DeclarationError(
            f"sync {sync.name}: its target was {found[0]} and is now {sync.target}",
            f"give the new one another name, or forget the old one with: tidegate remove "
            f"{sync.name} (the rows of {found[0]} stay)",
        )


def _tables_before(context: Context, control: Connection | None, sync: Sync) -> list[str]:
    """Other targets whose ledger still holds a watermark of this sync."""
    endpoints = {sync.target.connection: str(sync.target.relation)}
    if control is not None:
        records = JobRecords(context.plane)
        last = records.last_target(control, sync.project, SYNC, sync.name)
        if last is not None:
            endpoints.setdefault(Endpoint.parse(last).connection, "")
    found: list[str] = []
    for name, table in endpoints.items():
        if name not in context.settings.connections:
            continue
        try:
            with context.databases.lease(name) as connection:
                watermarks = Watermarks(context.ledger(name))
                others = watermarks.other_tables(connection, sync.pipeline, table)
        except TidegateError:
            # Another database that does not answer must not keep this one from being loaded.
            if name == sync.target.connection:
                raise
            continue
        found += [f"{name}:{other}" for other in others]
    return found


def _way_out(sync: Sync) -> str:
    if sync.group is not None:
        return (
            f"to load everything again as it is now: tidegate run {sync.name} --full-refresh; to "
            f"choose for this table alone, declare it on its own with source = "
            f'"{sync.source_name}", and group {sync.group} leaves it out'
        )
    return (
        f"to load everything again as declared now: tidegate run {sync.name} --full-refresh; to "
        "keep both, give the new one another name"
    )


def _words(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(value)})" if value else "none"
    return str(value) if value is not None else "none"
