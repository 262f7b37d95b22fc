"""`@tg.sync`: a sync declared in Python, with its transformation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Transform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Declared:
    """One decorated function and what was declared with it."""

    name: str
    values: dict[str, Any]
    function: Transform
    file: str


# Declarations go to whichever project is reading its pipelines file, and nowhere otherwise.
_collecting: ContextVar[list[Declared] | None] = ContextVar("declarations", default=None)


def collect(read: Callable[[], None]) -> list[Declared]:
    """The declarations made while `read` runs."""
    found: list[Declared] = []
    token = _collecting.set(found)
    try:
        read()
    finally:
        _collecting.reset(token)
    return found


def sync(
    *,
    source: str,
    target: str,
    name: str | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    cursor: str | None = None,
    mode: str | None = None,
    changes: str | None = None,
    lookback: str | int | None = None,
    settle: str | None = None,
    null_cursor: str | None = None,
    cursor_timezone: str | None = None,
    duplicates: str | None = None,
    batch_rows: int | None = None,
    partitions: int | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    catch_up: str | None = None,
    priority: int | None = None,
    resources: str | Sequence[str] | None = None,
    disable_after: int | None = None,
    columns: str | Sequence[str] | None = None,
    exclude_columns: str | Sequence[str] | None = None,
    where: str | None = None,
    query: str | None = None,
    before_sql: str | Sequence[str] | None = None,
    after_sql: str | Sequence[str] | None = None,
    checks: Mapping[str, str] | None = None,
    reject_limit: float | str | None = None,
    drift: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    sort_by: str | Sequence[str] | None = None,
    table_properties: Mapping[str, str] | None = None,
) -> Callable[[Transform], Transform]:
    """Declare a sync whose rows pass through the decorated function; its name is the sync's.

    With a pattern as source, the rows of every matching table pass through it, table by table.

    >>> @sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at")
    ... def orders(df):
    ...     return df.where("total >= 0")
    """
    values = {key_: value for key_, value in locals().items() if key_ != "name"}

    def declare(function: Transform) -> Transform:
        declared = _collecting.get()
        if declared is not None:
            code = function.__code__
            declared.append(Declared(name or function.__name__, values, function, code.co_filename))
        return function

    return declare
