"""Parameters of tasks: whatever way a value comes in, it is the same value, and stays it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.parameters import canonical, parameter_type, read_signature
from tidegate.core.errors import DeclarationError, UsageError


class Shop(Enum):
    NORTH = "n"
    SOUTH = "s"


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.none() | ZONES)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    date: st.dates(),
    datetime: MOMENTS,
    Shop: st.sampled_from(Shop),
    list[int]: st.lists(st.integers()),
    list[date]: st.lists(st.dates()),
    list[str]: st.lists(TEXT),
}
TYPED = st.sampled_from(list(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))


@given(TYPED)
def test_a_value_is_the_same_from_python_json_and_the_command_line(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    kind = parameter_type(annotation)
    assert kind is not None
    held = kind.read(value)
    written = json.loads(json.dumps(kind.write(held)))
    typed = json.dumps(written) if isinstance(written, list) else str(written)

    assert kind.read(written) == held
    assert kind.parse(typed) == held
    assert kind.write(kind.parse(typed)) == kind.write(held)


@given(MOMENTS.filter(lambda one: one.tzinfo is not None), ZONES)
def test_one_moment_is_one_value_in_every_zone(moment: datetime, zone: timezone) -> None:
    kind = parameter_type(datetime)
    assert kind is not None
    assert kind.write(kind.read(moment)) == kind.write(kind.read(moment.astimezone(zone)))
    assert kind.read(moment).tzinfo is UTC


@given(st.dictionaries(st.text(max_size=5), st.integers(), min_size=2))
def test_the_order_of_parameters_makes_no_difference(parameters: dict[str, int]) -> None:
    backwards = dict(reversed(parameters.items()))
    assert canonical(parameters) == canonical(backwards)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "1.5"),
        (int, "one"),
        (float, "nan"),
        (float, "inf"),
        (bool, "maybe"),
        (date, "2026-13-01"),
        (date, "2026-11-01T00:00:00"),
        (datetime, "yesterday"),
        (Shop, "n"),
        (list[int], "1,two"),
        (list[int], "[1"),
        (str, "a\0b"),
    ],
)
def test_what_is_no_such_value_is_refused_with_what_was_expected(
    annotation: Any, text: str
) -> None:
    kind = parameter_type(annotation)
    assert kind is not None
    with pytest.raises(ValueError, match=r"number|date|time|one of|list|true|text"):
        kind.parse(text)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, True), (bool, 1), (date, datetime(2026, 1, 1)), (float, float("nan")), (str, 1)],
)
def test_python_values_of_a_near_type_are_not_taken_for_another(
    annotation: Any, value: Any
) -> None:
    kind = parameter_type(annotation)
    assert kind is not None
    with pytest.raises(ValueError, match=r"."):
        kind.read(value)


def revenue(ctx: object, day: date, shop: Shop = Shop.NORTH, tags: list[str] = []) -> None:  # noqa: B006
    """A task."""


def test_a_signature_knows_what_must_be_given_and_fills_in_the_rest() -> None:
    signature = read_signature("revenue", revenue)

    assert signature.parse("revenue", {"day": "2026-11-01"}) == {
        "day": date(2026, 11, 1),
        "shop": Shop.NORTH,
        "tags": [],
    }
    assert signature.write(signature.parse("revenue", {"day": "2026-11-01", "tags": "a,b"})) == {
        "day": "2026-11-01",
        "shop": "NORTH",
        "tags": ["a", "b"],
    }


def test_missing_unknown_and_wrong_parameters_are_named_with_the_way_out() -> None:
    signature = read_signature("revenue", revenue)

    with pytest.raises(UsageError, match=r"needs a value for day \(date\)"):
        signature.parse("revenue", {})
    with pytest.raises(UsageError, match="no parameter 'dya'") as unknown:
        signature.parse("revenue", {"dya": "1"})
    assert "day (date)" in str(unknown.value)
    with pytest.raises(UsageError, match="expected a date such as"):
        signature.parse("revenue", {"day": "soon"})


def test_a_parameter_without_a_type_or_with_one_that_is_not_text_is_refused() -> None:
    def untyped(ctx, day):  # type: ignore[no-untyped-def]
        """No type."""

    def unserialisable(ctx: object, frame: dict[str, int]) -> None:
        """A type that is no parameter."""

    def wrong_default(ctx: object, day: date = "soon") -> None:  # type: ignore[assignment]
        """A default that is no value."""

    def open_ended(ctx: object, **more: int) -> None:
        """Names that nobody knows."""

    for function, words in (
        (untyped, "has no type"),
        (unserialisable, "not kept as text and back"),
        (wrong_default, "the default of day"),
        (open_ended, "no parameter by name"),
    ):
        with pytest.raises(DeclarationError, match=words):
            read_signature("t", function)
