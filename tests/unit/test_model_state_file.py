"""State files: what is written is read, and whatever else is refused."""

from __future__ import annotations

import io
import itertools
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admin.state_file import StateHeader, check_state, read_rows, write_state
from tidegate.core.errors import StateDamaged

HEADER = StateHeader(
    "shop",
    UUID("00000000-0000-0000-0000-00000000002a"),
    datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
    17,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=4)
SECTIONS = st.dictionaries(st.text("abcdefghij_", min_size=1, max_size=12), ROWS, max_size=4)
Sections = dict[str, list[dict[str, Any]]]


def write(sections: Sections, header: StateHeader = HEADER) -> bytes:
    texts = ((name, (json.dumps(row) for row in rows)) for name, rows in sections.items())
    return b"".join(write_state(header, texts))


def read(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    return [(section, json.loads(row)) for section, row in read_rows(io.BytesIO(data))]


A_FILE = write({"jobs": [{"job_id": 1, "name": "orders €"}, {"job_id": 2}], "schedules": []})


@given(SECTIONS)
def test_what_is_written_is_read(sections: Sections) -> None:
    data = write(sections)
    assert check_state(io.BytesIO(data)) == HEADER
    assert read(data) == [(name, row) for name, rows in sections.items() for row in rows]


@given(SECTIONS)
def test_a_state_file_is_one_json_document(sections: Sections) -> None:
    document = json.loads(write(sections))
    assert document["sections"] == sections
    assert document["rows"] == sum(map(len, sections.values()))
    assert (document["version"], document["project"], document["fence_token"]) == (1, "shop", 17)


def test_any_flipped_bit_is_refused() -> None:
    for place, bit in itertools.product(range(len(A_FILE)), range(8)):
        damaged = bytearray(A_FILE)
        damaged[place] ^= 1 << bit
        with pytest.raises(StateDamaged) as caught:
            check_state(io.BytesIO(damaged))
        assert "kept as it is" in (caught.value.hint or ""), (place, bit)


def test_any_file_that_is_cut_off_is_refused() -> None:
    for length in range(len(A_FILE)):
        with pytest.raises(StateDamaged):
            check_state(io.BytesIO(A_FILE[:length]))


@given(SECTIONS, st.data())
def test_any_other_byte_and_any_cut_is_refused_in_any_file(
    sections: Sections, data: st.DataObject
) -> None:
    whole = write(sections)
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    length = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ other]) + whole[place + 1 :]
    for damaged in (flipped, whole[:length], whole + whole[place:]):
        with pytest.raises(StateDamaged):
            check_state(io.BytesIO(damaged))


@given(st.binary(max_size=200))
def test_anything_else_is_no_state_file(data: bytes) -> None:
    with pytest.raises(StateDamaged):
        check_state(io.BytesIO(data))


def test_another_version_is_named_and_says_who_reads_it() -> None:
    later = A_FILE.replace(b'"version":1', b'"version":2')
    with pytest.raises(StateDamaged, match="version 2; this Tidegate reads version 1") as caught:
        check_state(io.BytesIO(later))
    assert "the Tidegate that wrote it" in (caught.value.hint or "")


def test_rows_may_be_more_than_memory_holds() -> None:
    seen = 0

    def rows() -> Any:
        nonlocal seen
        for _ in range(1_000):
            seen += 1
            yield '{"n":1}'

    pieces = write_state(HEADER, [("jobs", rows())])
    for _ in range(3):
        next(pieces)
    assert seen == 1
