"""Layouts: partitions and order as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.sync import Layout, SortTerm, Term
from tidegate.core.errors import DeclarationError
from tidegate.iceberg.catalog import backticked


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("region", "`region`"),
        ("day(created_at)", "days(`created_at`)"),
        ("days(created_at)", "days(`created_at`)"),
        ("HOUR( at )", "hours(`at`)"),
        ("bucket(16, id)", "bucket(16, `id`)"),
        ("truncate(4,name)", "truncate(4, `name`)"),
        ('"a b"', "`a b`"),
        ('day("at")', "days(`at`)"),
    ],
)
def test_a_partition_is_written_as_iceberg_wants_it(text: str, statement: str) -> None:
    assert Term.parse(text).render(backticked) == statement


@pytest.mark.parametrize("text", ["week(at)", "bucket(id)", "bucket(0, id)", "day(3, at)"])
def test_what_is_no_way_to_divide_a_table_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="not a way to divide"):
        Term.parse(text)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("id", "`id`"),
        ("id desc", "`id` DESC"),
        ("day(at) ASC nulls last", "days(`at`) ASC NULLS LAST"),
        ("description", "`description`"),
    ],
)
def test_an_order_has_a_direction(text: str, statement: str) -> None:
    assert SortTerm.parse(text).render(backticked) == statement


def test_a_layout_knows_its_columns_once() -> None:
    layout = Layout.parse(["day(at)", "id"], ["id desc", "name"], {})
    assert layout.columns == ("at", "id", "name")
    assert not layout.is_plain
    assert Layout().is_plain


@given(st.text(min_size=1).filter(lambda text: text.strip() == text and "(" not in text))
def test_no_name_gets_out_of_its_quotes(name: str) -> None:
    quoted = backticked(Term(name).column)
    assert quoted[0] == quoted[-1] == "`"
    assert "`" not in quoted[1:-1].replace("``", "")
