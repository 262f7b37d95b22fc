"""The demo's lake: the shop's orders once more, in an Iceberg table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.insight.demo import Content, Pair
from tidegate.lake.reading import main_rows
from tidegate.model.relation import Relation
from tidegate.pipeline.context import Context

LAKE_SYNC = "orders_in_the_lake"
LAKE_TOML = f"""
[connections.lake]                  # an Iceberg catalog in the control database
type = "iceberg"

[sync.{LAKE_SYNC}]
source = "shop:public.orders"
target = "lake:raw.orders"
cursor = "updated_at"
"""
_TABLE = Relation("raw", "orders")
_COLUMNS = ("id", "customer_id", "status", "updated_at")


def compare_lake(context: Context) -> Pair:
    """The shop's orders against the lake's, each read from where it lies and summed up here."""
    with context.databases.connect("shop") as shop:
        cursor = shop.execute("SELECT id, customer_id, status, updated_at FROM public.orders")
        source = _content(cursor)
    return Pair(LAKE_SYNC, source, _content(_lake_rows(context)))


def _lake_rows(context: Context) -> Iterator[tuple[Any, ...]]:
    rows = main_rows(context.catalog("lake"), _TABLE)
    for _, batch in () if rows is None else rows.batches(_COLUMNS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _content(rows: Iterable[tuple[Any, ...]]) -> Content:
    """Count and checksum, whatever the order."""
    count = total = 0
    for row in rows:
        count += 1
        digest = hashlib.sha256(repr([_plain(value) for value in row]).encode()).digest()
        total = (total + int.from_bytes(digest[:8])) % 2**64
    return Content(count, f"{total:016x}"[:10])


def _plain(value: Any) -> str:
    return value.timestamp().hex() if hasattr(value, "timestamp") else str(value)
