"""Patterns over table names, and where their tables go: by property and by example."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.sync import TargetTemplate
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Glob, Pattern, Relation, table_label

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
# Few letters, so that patterns and names meet often.
WORDS = st.text("ab_%*?.\\", max_size=8)
PLAIN = st.text("ab_%*?\\", min_size=1, max_size=8)


def matches_slowly(pattern: str, name: str) -> bool:
    """The meaning of a pattern, spelled out."""
    if not pattern:
        return not name
    head, rest = pattern[0], pattern[1:]
    if head == "*":
        return any(matches_slowly(rest, name[skip:]) for skip in range(len(name) + 1))
    return bool(name) and head in ("?", name[0]) and matches_slowly(rest, name[1:])


def matches_like(like: str, name: str) -> bool:
    """LIKE as Postgres has it, with a backslash as its escape."""
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    words = {"%": ".*", "_": "."}
    regex = "".join(words.get(one, re.escape(one.removeprefix("\\"))) for one in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None


@given(PLAIN, WORDS)
def test_a_pattern_matches_what_its_stars_and_question_marks_say(pattern: str, name: str) -> None:
    glob = Glob(pattern)
    assert glob.matches(name) == matches_slowly(pattern, name)
    assert matches_like(glob.like, name) == glob.matches(name)


@given(NAMES, NAMES)
def test_a_quoted_name_matches_itself_and_nothing_else(name: str, other: str) -> None:
    pattern = Pattern.parse(f'public."{name.replace(chr(34), chr(34) * 2)}"')
    assert pattern.table.matches(name)
    assert pattern.table.matches(other) == (name == other)
    assert not pattern.is_wild
    assert matches_like(pattern.table.like, name)


@given(st.lists(st.tuples(PLAIN, st.booleans()), min_size=1, max_size=2))
def test_a_pattern_reads_back_from_how_it_is_printed(parts: list[tuple[str, bool]]) -> None:
    globs = [Glob(text, literal) for text, literal in parts]
    pattern = Pattern(globs[0] if len(globs) == 2 else None, globs[-1])
    assert Pattern.parse(str(pattern)) == pattern


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a.b.c", '"a', 'a"b', '"a"b', 'a"*"', '""', "a\0b"]
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="not a pattern of table names"):
        Pattern.parse(text)


@pytest.mark.parametrize(
    ("pattern", "table", "fits"),
    [
        ("order_*", "sales.order_lines", True),
        ("order_*", "sales.orders", False),
        ("order_?", "sales.order_1", True),
        ("order_?", "sales.order_12", False),
        ("sales.*", "sales.x", True),
        ("sales.*", "public.x", False),
        ("*.*", "public.x", True),
        ("Orders", "public.orders", False),
        ('"a*"', 'public."a*"', True),
        ('"a*"', "public.ab", False),
        ("50%", 'public."50%"', True),
        ("50%", 'public."500"', False),
    ],
)
def test_a_pattern_without_a_schema_looks_at_the_name_alone(
    pattern: str, table: str, fits: bool
) -> None:
    assert Pattern.parse(pattern).matches(Relation.parse(table)) is fits


@given(NAMES, NAMES)
def test_a_target_holds_the_exact_names_of_its_source(schema: str, table: str) -> None:
    template = TargetTemplate.parse("warehouse:raw_{schema}.{table}_copy")
    assert template is not None
    target = template.of(Relation(schema, table)).relation
    assert target == Relation(f"raw_{schema}", f"{table}_copy")
    assert template.covers(target)
    assert not template.covers(Relation(schema, "x"))


def test_a_quoted_part_of_a_target_is_literal() -> None:
    template = TargetTemplate.parse('warehouse:"{schema}".{table}')
    assert template is not None
    assert template.fields == {"table"}
    assert template.of(Relation("public", "a{schema}")).relation == Relation(
        "{schema}", "a{schema}"
    )


@given(st.lists(NAMES, min_size=2, max_size=2), st.lists(NAMES, min_size=2, max_size=2))
def test_two_tables_never_share_a_name(one: list[str], other: list[str]) -> None:
    labels = [".".join(table_label(part) for part in parts) for parts in (one, other)]
    assert (labels[0] == labels[1]) == (one == other)
