"""Parameters of a task: typed, the same from the command line, from JSON and from Python."""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any

from tidegate.core.errors import DeclarationError, UsageError

Json = str | int | float | bool | None | list[Any]
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_KINDS = "str, int, float, bool, date, datetime, an Enum, or a list of one of these"


@dataclass(frozen=True, slots=True)
class ParameterType:
    """One type that a parameter may have.

    `parse` reads what was typed, `write` gives JSON, `read` takes JSON or a Python value back.
    What is wrong raises ValueError with what was expected.
    """

    name: str
    parse: Callable[[str], Any]
    read: Callable[[Any], Any]
    write: Callable[[Any], Json]
    luigi: Callable[[Any], str] | None = None
    """how Luigi writes it; None where it has several ways, or none"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a task; without a default it must be given."""

    name: str
    type: ParameterType
    required: bool = True
    default: Any = None

    def describe(self) -> str:
        """For messages and help: `day (date)`."""
        if self.required:
            return f"{self.name} ({self.type.name})"
        return f"{self.name} ({self.type.name}, {self.type.write(self.default)!r} by default)"


@dataclass(frozen=True, slots=True)
class Signature:
    """All parameters of a task, in the order of its function."""

    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.parameters)

    def parse(self, task: str, given: Mapping[str, str]) -> dict[str, Any]:
        """What was typed, as `NAME=VALUE` each."""
        return self._take(task, given, lambda one, text: one.type.parse(text))

    def read(self, task: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What came as JSON or from Python."""
        return self._take(task, given, lambda one, value: one.type.read(value))

    def write(self, values: Mapping[str, Any]) -> dict[str, Json]:
        """The values as JSON, in the order of the function."""
        return {one.name: one.type.write(values[one.name]) for one in self.parameters}

    def _take(
        self, task: str, given: Mapping[str, Any], take: Callable[[Parameter, Any], Any]
    ) -> dict[str, Any]:
        for name in given:
            if name not in self.names:
                known = ", ".join(one.describe() for one in self.parameters) or "none"
                raise UsageError(f"task {task} has no parameter {name!r}", f"it has {known}")
        found: dict[str, Any] = {}
        for one in self.parameters:
            if one.name not in given:
                if one.required:
                    raise UsageError(
                        f"task {task} needs a value for {one.describe()}",
                        f"add --param {one.name}=…",
                    )
                found[one.name] = one.default
                continue
            try:
                found[one.name] = take(one, given[one.name])
            except ValueError as error:
                raise UsageError(
                    f"task {task}: {one.name} = {given[one.name]!r}", f"expected {error}"
                ) from None
        return found


def canonical(parameters: Mapping[str, Json]) -> str:
    """The one way to write parameters down, whatever order they came in.

    >>> canonical({"shop": "b", "day": "2026-11-01"})
    '{"day":"2026-11-01","shop":"b"}'
    """
    return json.dumps(parameters, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def read_signature(task: str, function: Callable[..., Any]) -> Signature:
    """The parameters of a task's function, after its first, which is the context."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise DeclarationError(
            f"task {task}: the type of a parameter cannot be read: {error}",
            "import the type in the pipelines file",
        ) from None
    given = list(inspect.signature(function).parameters.values())
    if not given:
        raise DeclarationError(
            f"task {task} takes nothing", f"write def {function.__name__}(ctx, …)"
        )
    found = []
    for one in given[1:]:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise DeclarationError(
                f"task {task}: {one} is no parameter by name", "write every parameter out"
            )
        found.append(_parameter(task, one, hints))
    return Signature(tuple(found))


def _parameter(task: str, one: inspect.Parameter, hints: Mapping[str, Any]) -> Parameter:
    if one.name not in hints:
        raise DeclarationError(
            f"task {task}: parameter {one.name} has no type", f"write {one.name}: {_KINDS}"
        )
    kind = parameter_type(hints[one.name])
    if kind is None:
        raise DeclarationError(
            f"task {task}: parameter {one.name} has the type {hints[one.name]!r}, which is not "
            "kept as text and back",
            f"use {_KINDS}",
        )
    if one.default is one.empty:
        return Parameter(one.name, kind)
    try:
        return Parameter(one.name, kind, False, kind.read(one.default))
    except ValueError as error:
        raise DeclarationError(
            f"task {task}: the default of {one.name} is {one.default!r}", f"expected {error}"
        ) from None


def parameter_type(annotation: Any) -> ParameterType | None:
    """The type behind an annotation; None where there is none such."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if typing.get_origin(annotation) is list:
        (inner,) = typing.get_args(annotation) or (None,)
        kind = None if typing.get_origin(inner) is list else parameter_type(inner)
        return None if kind is None else _list(kind)
    return None


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number")
    return value


def _parse_whole(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError("a whole number") from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a finite number")
    return float(value) + 0.0  # 0.0 and -0.0 are one value


def _parse_number(text: str) -> float:
    try:
        return _number(float(text))
    except ValueError:
        raise ValueError("a finite number") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _YES + _NO:
        raise ValueError("true or false")
    return word in _YES


def _day(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, str | date):
        raise ValueError("a date such as 2026-11-01")
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a date such as 2026-11-01") from None


def _moment(value: Any) -> datetime:
    expected = "a time such as 2026-11-01T08:30:00 or 2026-11-01T08:30:00+00:00"
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(expected) from None
    if not isinstance(value, datetime):
        raise ValueError(expected)
    try:
        # One moment is one value, whatever zone it was written in.
        return value if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise ValueError(expected) from None


_SCALARS: dict[Any, ParameterType] = {
    str: ParameterType("text", _text, _text, str, str),
    int: ParameterType("whole number", _parse_whole, _whole, int, str),
    float: ParameterType("number", _parse_number, _number, float, str),
    bool: ParameterType("true or false", _parse_flag, _flag, bool, str),
    date: ParameterType(
        "date",
        _day,
        _day,
        lambda value: str(value.isoformat()),
        lambda value: str(value.strftime("%Y-%m-%d")),
    ),
    datetime: ParameterType("time", _moment, _moment, lambda value: str(value.isoformat())),
}


def _enum(kind: type[Enum]) -> ParameterType:
    names = ", ".join(one.name for one in kind)

    def take(value: Any) -> Enum:
        if isinstance(value, kind):
            return value
        if not isinstance(value, str) or value not in kind.__members__:
            raise ValueError(f"one of {names}")
        return kind[value]

    return ParameterType(
        f"one of {names}",
        take,
        take,
        lambda value: str(value.name),
        lambda value: str(value.name),
    )


def _list(inner: ParameterType) -> ParameterType:
    expected = f"a list of {inner.name}s: a,b or a JSON list"

    def take(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(expected)
        return [inner.read(one) for one in value]

    def parse(text: str) -> list[Any]:
        if text.strip().startswith("["):
            try:
                return take(json.loads(text))
            except json.JSONDecodeError:
                raise ValueError(expected) from None
        return [inner.parse(one) for one in text.split(",")] if text.strip() else []

    def luigi(value: list[Any]) -> str:
        if inner in (_SCALARS[str], _SCALARS[int], _SCALARS[float], _SCALARS[bool]):
            return json.dumps(value)
        return ",".join(one.name for one in value)

    return ParameterType(
        f"list of {inner.name}s",
        parse,
        take,
        lambda value: [inner.write(one) for one in value],
        None if inner in (_SCALARS[date], _SCALARS[datetime]) else luigi,
    )
