"""A declaration with changes = "cdc": what it cannot be combined with."""

from __future__ import annotations

from tidegate.errors import DeclarationError
from tidegate.model.rules import Duplicates, Mode
from tidegate.model.sync import Sync


def refuse_with_cdc(sync: Sync) -> None:
    """Refuse what has no meaning where every change is told."""
    what = f'sync {sync.name}: changes = "cdc"'
    if sync.lake_source:
        raise DeclarationError(
            f"{what} is for tables of Postgres, and {sync.source} is one of a lake",
            "leave changes out: a lake's snapshots tell what changed",
        )
    if sync.mode is not Mode.MERGE:
        raise DeclarationError(
            f'{what} keeps the target as its source is, which mode = "{sync.mode}" does not',
            'use mode = "merge"',
        )
    if sync.query is not None:
        raise DeclarationError(
            f"{what} reads the changes of a table, and a query has none",
            'name the table, such as source = "shop:public.orders"',
        )
    if sync.where is not None:
        raise DeclarationError(
            f"{what} loads every row of the table, so where is not available",
            "leave it out, and leave rows out in a view upon the target",
        )
    if sync.cursor is not None:
        raise DeclarationError(
            f"{what} is ordered by the source's log, so cursor = {sync.cursor!r} means nothing",
            "remove the cursor",
        )
    if sync.duplicates is Duplicates.NEWEST:
        raise DeclarationError(
            f'{what} needs a key that identifies a row, so duplicates = "newest" means nothing',
            "choose a unique key",
        )
    if sync.checks:
        raise DeclarationError(
            f"{what} may tell of a row without the values that did not change, which are taken "
            "from the target; a row that was set aside by its checks has none there",
            "remove the checks, or check in a view upon the target",
        )
