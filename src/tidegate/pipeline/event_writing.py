"""The text of events that are made up: the usual one, another of the same meaning, broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

from tidegate.model.event_model import EventModel
from tidegate.model.event_text import MAX_DEPTH
from tidegate.pipeline.event_samples import Tree, put

_ZONES = tuple(timezone(timedelta(minutes=60 * hours)) for hours in (-8, -3, 0, 2, 9))


def usual_text(tree: Tree) -> str:
    """An event as most clients would write it."""
    return json.dumps(tree, default=_plain, ensure_ascii=False, separators=(",", ":"))


def other_text(value: Any, rng: Random) -> str:
    """The same event in other words: members reordered, another zone, zeros at the end."""
    if isinstance(value, dict):
        members = list(value.items())
        rng.shuffle(members)
        inner = (f"{json.dumps(name)}: {other_text(one, rng)}" for name, one in members)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(other_text(one, rng) for one in value) + "]"
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text + "0" * rng.randrange(3) if "." in text else text
    if isinstance(value, datetime):
        return json.dumps(value.astimezone(rng.choice(_ZONES)).isoformat(timespec="microseconds"))
    return json.dumps(value, default=_plain, ensure_ascii=rng.random() < 0.5)


def odd_text(tree: Tree) -> str:
    """A good event whose text jsonb refuses, for something that no model here reads."""
    return f'{{"\\u0000":"\\ud800",{usual_text(tree)[1:]}'


def broken_text(tree: Tree, model: EventModel, kind: str) -> str:
    """An event that must fail in this way, whatever the model reads beside its moment."""
    return _BROKEN[kind](tree, model)


def _with_moment(value: Any) -> Callable[[Tree, EventModel], str]:
    def text(tree: Tree, model: EventModel) -> str:
        put(tree, model.partition_field.path, value)
        return usual_text(tree)

    return text


def _nested(tree: Tree, model: EventModel) -> str:
    depth = MAX_DEPTH + 1
    return f'{{"deep":{"[" * depth}{"]" * depth},{usual_text(tree)[1:]}'


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        spec = "microseconds" if value.microsecond % 1_000 else "milliseconds"
        return value.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return float(value)  # exact for as few digits as are made up here
    return value.isoformat() if isinstance(value, date) else str(value)


_BROKEN: dict[str, Callable[[Tree, EventModel], str]] = {
    "not_json": lambda tree, _: usual_text(tree)[:-1],
    "not_text": lambda tree, _: "\\xff\\x00" + usual_text(tree),
    "not_an_object": lambda tree, _: f"[{usual_text(tree)}]",
    "empty": lambda _, __: "",
    "missing": _with_moment(None),
    "wrong_type": _with_moment(20_261_101),
    "no_such_day": _with_moment("2026-02-30T00:00:00Z"),
    "year_1": _with_moment("0001-01-01T00:00:00Z"),
    "year_9999": _with_moment("9999-12-31T23:59:59Z"),
    "nul": _with_moment("2026-11-01T00:00:00Z\0"),
    "deep": _nested,
}
BROKEN_KINDS = tuple(_BROKEN)
