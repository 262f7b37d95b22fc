"""A declaration against a lake as its source: names resolved, everything unsafe refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.errors import DeclarationError, SourceError
from tidegate.lake.metadata import list_tables, read_table
from tidegate.model.lake import Field, LakeTable, is_flat
from tidegate.model.rules import Duplicates, Mode
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.changed import refuse_other
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import check_layout, check_loaded, check_supported, nearest
from tidegate.sources.lake import LakeSource


def resolve_lake_source(context: Context, sync: Sync) -> LakeSource:
    """The source as it can be read; refuses what is wrong before anything is written."""
    check_supported(sync)
    _refuse_meaningless(sync)
    catalog = context.catalog(sync.source.connection)
    table = read_table(catalog, sync.source.relation)
    if table is None:
        raise SourceError(
            f"table {sync.source.relation} does not exist in lake {catalog.name}",
            nearest(str(sync.source.relation), (str(one) for one in list_tables(catalog))),
        )
    key = _resolve_key(table, sync)
    columns = _resolve_columns(table, sync)
    names = [one.name for one in columns]
    check_loaded(sync, names, key)
    check_layout(sync, names)
    return LakeSource(
        catalog=catalog,
        table=table,
        columns=columns,
        key=key,
        mode=sync.mode,
        batch_rows=sync.batch_rows,
        sync_name=sync.name,
    )


def lake_declaration(sync: Sync, source: LakeSource, columns: Any) -> dict[str, Any]:
    """What is remembered with the watermark."""
    return {
        "columns": columns,
        "source": sync.source_name,
        "cursor": None,
        "key": list(source.key),
        "table": source.table.uuid,
    }


def refuse_changed_lake(watermark: Watermark, source: LakeSource, sync: Sync) -> None:
    """Refuse to go on from what another source, key or table left."""
    before: Mapping[str, Any] = watermark.declaration or {}
    refuse_other(watermark, lake_declaration(sync, source, None), sync)
    known = before.get("table", source.table.uuid)
    if watermark.version == 0 or sync.mode is Mode.REPLACE or known == source.table.uuid:
        return
    raise DeclarationError(
        f"sync {sync.name}: {sync.source} is not the table that was loaded up to the snapshot "
        f"{watermark.value}: that one was dropped, and this one made anew under its name",
        f"to load all of it, and remove what is gone: tidegate run {sync.name} --full-refresh",
    )


def _refuse_meaningless(sync: Sync) -> None:
    what = f"sync {sync.name}: its source is a table of a lake"
    if sync.query is not None:
        raise DeclarationError(
            f"{what}, which a query cannot be read from",
            'name the table, such as source = "lake:raw.orders", and use a transformation',
        )
    if sync.where is not None:
        raise DeclarationError(
            f"{what}, and where is not available there",
            "leave rows out in a transformation: df.where(…)",
        )
    if sync.cursor is not None:
        raise DeclarationError(
            f"{what}, so cursor = {sync.cursor!r} means nothing: snapshots order it",
            "remove the cursor",
        )
    if sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f'{what}, which does not tell which of two rows is newer, so duplicates = "newest" '
            "means nothing",
            "choose a unique key, or fold the rows in a transformation",
        )
    if sync.mode is Mode.APPEND and sync.key:
        raise DeclarationError(
            f"{what}, from which append adds what is new without looking at a key",
            'remove the key, or use mode = "merge"',
        )


def _resolve_columns(table: LakeTable, sync: Sync) -> tuple[Field, ...]:
    names = [one.name for one in table.fields]
    for name in (*(sync.columns or ()), *sync.exclude_columns):
        _require(table, name, f"sync {sync.name}: column")
    wanted = sync.columns if sync.columns is not None else names
    found = tuple(
        one for one in table.fields if one.name in wanted and one.name not in sync.exclude_columns
    )
    nested = next((one for one in found if not is_flat(one.type)), None)
    if nested is not None and sync.transform is None:
        raise DeclarationError(
            f"sync {sync.name}: column {nested.name} of {table.relation} is {nested.type}, which "
            "no column of the target can hold",
            "leave it out with exclude_columns, or turn it into text in a transformation: "
            "to_json(…)",
        )
    return found


def _resolve_key(table: LakeTable, sync: Sync) -> tuple[str, ...]:
    if sync.mode is Mode.APPEND:
        return ()
    for name in sync.key or ():
        _require(table, name, f"sync {sync.name}: key column")
    key = sync.key or table.identifier
    if not key and sync.mode is not Mode.REPLACE:
        raise DeclarationError(
            f"sync {sync.name}: {table.relation} has no identifier fields, and {sync.mode} needs "
            "a key",
            "declare the columns that identify a row, such as key = "
            f'["{table.fields[0].name if table.fields else "id"}"], or load the whole of it each '
            'time with mode = "replace"',
        )
    return key


def _require(table: LakeTable, name: str, what: str) -> None:
    if table.field(name) is None:
        raise DeclarationError(
            f"{what} {name} does not exist in {table.relation}",
            nearest(name, (one.name for one in table.fields)),
        )
