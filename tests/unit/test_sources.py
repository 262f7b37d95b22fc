"""What is known of a source: its server, its tables, its slots and its folded changes."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.sync import TargetTemplate
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Glob, Pattern, Relation, table_label
from tidegate.load.sources.cdc.fold import Fold, Twice
from tidegate.load.sources.cdc.pgoutput import Field
from tidegate.load.sources.cdc.slot import (
    SlotOrigin,
    Tables,
    TableState,
    publication_name,
    slot_name,
)
from tidegate.postgres.server_identity import Fate, Server, switch_point

HISTORY = "1\t0/3000148\tno recovery target specified\n\n2\t0/50000A0\tno recovery target\n"
SEEN = Server("7001", "5", 1, "0/3000000")


@pytest.mark.parametrize(
    ("change", "history", "expected"),
    [
        ({}, None, Fate.SAME),
        ({"lsn": "1/0"}, None, Fate.SAME),
        ({"lsn": "0/2FFFFFF"}, None, Fate.SET_BACK),
        ({"lsn": "0/2FFFFFF", "is_standby": True}, None, Fate.SAME),
        ({"timeline": 0, "lsn": "0/0", "is_standby": True}, None, Fate.SAME),
        ({"system": "7002"}, None, Fate.OTHER_SERVER),
        ({"system": ""}, None, Fate.SAME),
        ({"database": "6"}, None, Fate.OTHER_DATABASE),
        ({"timeline": 2, "lsn": "0/4000000"}, HISTORY, Fate.FOLLOWED),
        ({"timeline": 3, "lsn": "0/6000000"}, HISTORY, Fate.FOLLOWED),
        ({"timeline": 2, "lsn": "0/4000000"}, HISTORY.replace("3000148", "2000"), Fate.BRANCHED),
        ({"timeline": 2, "lsn": "0/4000000"}, "", Fate.BRANCHED),
        ({"timeline": 2, "lsn": "0/4000000"}, None, Fate.UNTOLD),
        ({"timeline": 2, "lsn": "0/2000000"}, None, Fate.BRANCHED),
    ],
)
def test_what_has_become_of_a_server(
    change: dict[str, object], history: str | None, expected: Fate
) -> None:
    now = replace(SEEN, **change)  # type: ignore[arg-type]
    assert SEEN.fate(now, lambda _: history)[0] is expected
    assert Server.from_json(SEEN.to_json()) == SEEN


def test_an_older_timeline_is_one_that_others_have_left() -> None:
    before = replace(SEEN, timeline=2)
    assert before.fate(replace(SEEN, lsn="1/0"), lambda _: HISTORY)[0] is Fate.BRANCHED


def test_a_history_tells_where_each_timeline_was_left() -> None:
    assert switch_point(HISTORY, 1) == "0/3000148"
    assert switch_point(HISTORY, 2) == "0/50000A0"
    assert switch_point(HISTORY, 3) is None
    assert switch_point("", 1) is None


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


@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_a_name_is_one_that_a_slot_may_have(project: str, connection: str, identity: str) -> None:
    name = slot_name(project, connection, identity)
    assert re.fullmatch(r"tidegate_[a-z0-9_]{1,54}", name)
    assert name == slot_name(project, connection, identity)


def test_names_differ_where_anything_does() -> None:
    names = {
        slot_name("shop", "db", "1"),
        slot_name("shop", "db", "2"),
        slot_name("shop_d", "b", "1"),
        slot_name("Shop", "db", "1"),
        slot_name("s" * 80, "db", "1"),
        slot_name("s" * 81, "db", "1"),
        publication_name("shop", "all.orders", "1"),
        publication_name("shop", "all_orders", "1"),
    }
    assert len(names) == 8
    assert slot_name("shop", "db", "1").startswith("tidegate_shop_db_")


def test_an_origin_is_remembered_as_it_was() -> None:
    origin = SlotOrigin("7", 2, "slot", 16400, 16401)
    assert SlotOrigin.from_json(origin.to_json()) == origin
    tables = Tables(800, (TableState(16390, "public.orders", 0, 16390, 0, "cafe", False),))
    seen = replace(tables, states=(replace(tables.states[0], node=16500, empty=True),))
    origin = replace(origin, tables=tables, seen=seen)
    assert SlotOrigin.from_json(json.loads(json.dumps(origin.to_json()))) == origin
    # As it was remembered before there were tables.
    old = {**origin.to_json()}
    del old["tables"], old["seen"]
    assert SlotOrigin.from_json(old) == replace(origin, tables=None, seen=None)


def test_only_changes_of_rows_leave_tables_as_they_are() -> None:
    table = TableState(16390, "public.orders", 0, 16390, 16395, "cafe", False)
    tables = Tables(800, (table,))
    for other, same in [
        (replace(table, empty=True), True),
        (replace(table, node=16500), False),
        (replace(table, columns="f00d"), False),
        (replace(table, oid=1), False),
    ]:
        assert Tables(900, (other,)).is_as(tables) is same
    assert not tables.is_as(None)
    # A file alone is no rewrite; the table of large values tells, where there is one.
    assert not replace(table, node=16500, columns="f00d").is_rewritten(table)
    assert replace(table, node=16500, toast=16501).is_rewritten(table)
    small = replace(table, toast=0)
    assert replace(small, node=16500, columns="f00d").is_rewritten(small)
    assert not replace(small, columns="f00d").is_rewritten(small)


Step = tuple[str, ...]
"""what is done, to which row, and what it becomes"""


def row(text: str) -> list[Field]:
    """A row such as 2a: its key and its value, which is not sent where it is missing."""
    fields: list[Field] = [struct.pack(">I", 1) + one.encode() for one in text]
    return [*fields, None][:2]


def play(fold: Fold, *steps: Step) -> None:
    for kind, before, *after in steps:
        if kind == "insert":
            fold.insert(row(before))
        elif kind == "delete":
            fold.delete(row(before), whole=len(before) == 2, at=0)
        else:
            fold.update(row(after[0]), row(before), whole=True, at=0)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("insert", "2a"), ("insert", "2b")),
        (("insert", "2a"), ("update", "1a", "2a")),
        (("update", "1a", "2a"), ("update", "2b", "3b")),
        (("update", "1a", "2a"), ("update", "2b", "3")),
        (("update", "1a", "2a"), ("delete", "2b")),
        (("delete", "2a"), ("update", "2b", "2c")),
    ],
)
def test_two_rows_with_one_key_are_noticed(first: Step, then: Step, soft: bool) -> None:
    fold = Fold((0,), 2, soft)
    play(fold, first)
    with pytest.raises(Twice):
        play(fold, then)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ((("insert", "2a"), ("delete", "2a"), ("insert", "2a")), 1),
        ((("delete", "2"), ("insert", "2a"), ("delete", "2"), ("update", "1a", "2a")), 2),
        ((("update", "1a", "2a"), ("update", "2a", "3b"), ("insert", "2c")), 3),
        ((("insert", "2a"), ("update", "2a", "2b"), ("delete", "2b")), 1),
    ],
)
def test_one_row_after_the_other_may_have_a_key(
    steps: tuple[Step, ...], left: int, soft: bool
) -> None:
    fold = Fold((0,), 2, soft)
    play(fold, *steps)
    assert len(fold) == left
