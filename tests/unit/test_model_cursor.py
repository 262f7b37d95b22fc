"""Cursor types, and how Postgres types appear in Spark and come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.watermark import CursorType
from tidegate.postgres.types import needs_text, postgres_type, spark_type


@given(st.sampled_from(CursorType), st.none() | st.integers(0, 6))
def test_a_cursor_type_is_known_with_and_without_precision(
    kind: CursorType, precision: int | None
) -> None:
    text = kind.value
    if precision is not None and "timestamp" in text:
        text = text.replace("timestamp", f"timestamp({precision})", 1)
    assert CursorType.of(text) is kind


@pytest.mark.parametrize(
    "name", ["numeric", "numeric(10,0)", "text", '"date"', "date[]", "time", "interval", "", "DATE"]
)
def test_other_types_are_no_cursor(name: str) -> None:
    assert CursorType.of(name) is None


def test_integers_are_told_from_times() -> None:
    assert {kind for kind in CursorType if kind.is_integer} == {
        CursorType.SMALLINT,
        CursorType.INTEGER,
        CursorType.BIGINT,
    }


@given(st.integers(1, 1000), st.integers(-1000, 1000))
def test_a_numeric_becomes_a_decimal_only_where_spark_has_an_equal_one(
    precision: int, scale: int
) -> None:
    found = spark_type(f"numeric({precision},{scale})")
    if precision <= 38 and 0 <= scale <= precision:
        assert found == f"decimal({precision},{scale})"
        assert postgres_type(found) == f"numeric({precision},{scale})"
    else:
        assert found == "string"


@pytest.mark.parametrize(
    ("name", "spark"),
    [
        ("integer", "int"),
        ("timestamp(3) with time zone", "timestamp"),
        ("timestamp without time zone", "timestamp_ntz"),
        ("character varying(5)", "string"),
        ("jsonb", "string"),
        ("integer[]", "string"),
        ("double precision", "double"),
    ],
)
def test_each_postgres_type_has_its_spark_type(name: str, spark: str) -> None:
    assert spark_type(name) == spark


def test_only_types_that_spark_lacks_travel_as_text() -> None:
    direct = ("integer", "text", "bytea", "date", "timestamp with time zone", "boolean")
    assert not any(needs_text(name) for name in direct)
    assert all(needs_text(name) for name in ("numeric", "numeric(10,2)", "uuid", "text[]"))


def test_what_postgres_has_no_column_for_is_not_made_up() -> None:
    assert postgres_type("map<string,int>") is None
    assert postgres_type("struct<a:int>") is None
