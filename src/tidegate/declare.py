"""`@tg.sync` and `@tg.task`: what is declared in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from tidegate.config.task import Need

Transform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Declared:
    """One decorated function and what was declared with it."""

    name: str
    values: dict[str, Any]
    function: Callable[..., Any]
    file: str
    is_task: bool = False


Function = TypeVar("Function", bound=Callable[..., Any])
Required = Callable[..., Any] | str | Need
Requires = Sequence[Required] | Callable[..., Sequence[Required]] | str | Need

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
    deletes: str | None = None,
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
        _declare(name, values, function, is_task=False)
        return function

    return declare


@overload
def task(function: Function, /) -> Function: ...


@overload
def task(
    *,
    name: str | None = None,
    target: str | None = None,
    key: str | Sequence[str] | None = None,
    mode: str | None = None,
    requires: Requires = (),
    complete: Callable[..., bool] | None = None,
    luigi: str | Callable[..., str] | None = None,
    retries: int | None = None,
    retry_delay: str | float | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    catch_up: str | None = None,
    schedule_parameter: str | None = None,
    priority: int | None = None,
    resources: str | Sequence[str] | None = None,
    disable_after: int | None = None,
    partitions: int | None = None,
) -> Callable[[Function], Function]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    target: str | None = None,
    key: str | Sequence[str] | None = None,
    mode: str | None = None,
    requires: Requires = (),
    complete: Callable[..., bool] | None = None,
    luigi: str | Callable[..., str] | None = None,
    retries: int | None = None,
    retry_delay: str | float | None = None,
    schedule: str | None = None,
    timezone: str | None = None,
    catch_up: str | None = None,
    schedule_parameter: str | None = None,
    priority: int | None = None,
    resources: str | Sequence[str] | None = None,
    disable_after: int | None = None,
    partitions: int | None = None,
) -> Any:
    """Declare a task: its first argument is the context, the others are its parameters.

    With a target it returns a DataFrame, which is published once for each set of parameters.
    Without one it is a side effect, done once; `complete` says so where a marker would not.
    `luigi="Revenue"` goes by the markers that Luigi's class of this name left, and leaves such.

    >>> from datetime import date
    >>> @task(target="warehouse:marts.revenue", mode="delete_insert", requires=["orders"])
    ... def revenue(ctx, day: date):
    ...     return ctx.read("warehouse:raw.orders").where(f"day = '{day}'")
    """
    values = {key_: value for key_, value in locals().items() if key_ not in ("name", "function")}

    def declare(decorated: Function) -> Function:
        _declare(name, values, decorated, is_task=True)
        return decorated

    return declare if function is None else declare(function)


def needs(of: Callable[..., Any] | str, /, **parameters: Any) -> Need:
    """A requirement with parameters of its own: `tg.needs(revenue, day=day - timedelta(1))`."""
    return Need(of, parameters)


def _declare(
    name: str | None, values: dict[str, Any], function: Callable[..., Any], *, is_task: bool
) -> None:
    declared = _collecting.get()
    if declared is not None:
        code = function.__code__
        declared.append(
            Declared(name or function.__name__, values, function, code.co_filename, is_task)
        )
