"""Bodies of events: cut apart without being read, and kept as text whatever they hold."""

from __future__ import annotations

import json
import re
import time
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.events.intake import body_text, cut_array, cut_lines, find_id, storable

ONE = UUID("5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e7f")
TWO = UUID("5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e70")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
SPACES = st.text(alphabet=" \t\r\n", max_size=2)


@given(
    st.lists(st.tuples(VALUES, st.booleans()), max_size=6), st.lists(SPACES, min_size=14), SPACES
)
def test_the_elements_of_an_array_are_cut_out_as_they_were_written(
    values: list[tuple[object, bool]], spaces: list[str], end: str
) -> None:
    texts = [json.dumps(value, ensure_ascii=ascii) for value, ascii in values]
    written = ",".join(f"{spaces[i * 2]}{text}{spaces[i * 2 + 1]}" for i, text in enumerate(texts))
    body = f"{end}[{written}]{end}".encode("utf-8", "surrogatepass")
    assert cut_array(body) == [text.encode("utf-8", "surrogatepass") for text in texts]


@pytest.mark.parametrize(
    ("body", "pieces"),
    [
        (b"[]", []),
        (b" [ ] ", []),
        (b"[1]", [b"1"]),
        (b'[{"a": 1.00}, {broken, {"b": 2}]', None),
        (b'[{"a": 1.00}, broken, {"b": 2}]', [b'{"a": 1.00}', b"broken", b'{"b": 2}']),
        (b'["a,]", "\\"]"]', [b'"a,]"', b'"\\"]"']),
        (b"[\xff, 1]", [b"\xff", b"1"]),
        (b"[1, 2", None),
        (b"[1, 2]]", None),
        (b"[1, 2] 3", None),
        (b"[1] [2]", None),
        (b"[1,]", None),
        (b"[,1]", None),
        (b"[1,,2]", None),
        (b"[[1}]", None),
        (b'["a]', None),
        (b"", None),
        (b'{"a": [1]}', None),
        (b"nonsense", None),
    ],
)
def test_what_is_no_whole_array_is_not_cut(body: bytes, pieces: list[bytes] | None) -> None:
    assert cut_array(body) == pieces


def test_an_array_that_is_made_to_be_slow_is_not() -> None:
    began = time.process_time()
    assert cut_array(b"[" * 1_000_000) is None
    assert cut_array(b'["' + b'\\"' * 500_000) is None
    assert len(cut_array(b"[" + b"1," * 300_000 + b"1]") or ()) == 300_001
    assert find_id(b'{"id": ' * 150_000) is None
    assert time.process_time() - began < 5


def test_lines_are_events_but_for_blank_ones() -> None:
    assert cut_lines(b'{"a": 1}\r\n\n  \n{"b":\t2} \nnonsense') == [
        b'{"a": 1}',
        b'{"b":\t2}',
        b"nonsense",
    ]
    assert cut_lines(b"\n\n") == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f'{{"id": "{ONE}"}}', ONE),
        (f'{{"event_id": "{ONE}"}}', ONE),
        (f' {{ "a": [1, {{}}], "event_id" : "{str(ONE).upper()}" }}', ONE),
        (f'{{"id": "{ONE}", "event_id": "{TWO}"}}', TWO),
        (f'{{"event_id": "x", "id": "{ONE}"}}', ONE),
        (f'{{"id": "{TWO}", "id": "{ONE}"}}', ONE),
        (f'{{"user": {{"id": "{ONE}"}}}}', None),
        (f'{{"users": [{{"id": "{ONE}"}}]}}', None),
        (f'{{"id": {{"id": "{ONE}"}}}}', None),
        (f'[{{"id": "{ONE}"}}]', None),
        (f'"{{\\"id\\": \\"{ONE}\\"}}"', None),
        (f'{{"text": "\\"id\\": \\"{ONE}\\""}}', None),
        (f'{{"a": "id", "b": "{ONE}"}}', None),
        (f'{{}} {{"id": "{ONE}"}}', None),
        ('{"id": "17"}', None),
        ('{"id": 17}', None),
        (f'{{"id": "{{{ONE}}}"}}', None),
        (f'{{"id": "{UUID(int=0)}"}}', None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_an_event_is_known_by_its_own_id_and_by_that_of_nothing_in_it(
    body: str, found: UUID | None
) -> None:
    assert find_id(body.encode()) == found


@given(st.binary())
@example(b'{"a": "\\\xff"}')
@example(b'{"a": "\\\\\xff"}')
@example(b'{"a": "\\\x00"}')
@example(b'{"a": "\xed\xa0\x80"}')
def test_every_body_is_kept_as_text_and_none_becomes_json_by_it(body: bytes) -> None:
    text = body_text(body)
    assert "\0" not in text
    stored = text.encode("utf-8")
    if stored != body:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
    restored = re.sub(rb"\\x([0-9a-f]{2})", lambda one: bytes.fromhex(one[1].decode()), stored)
    assert restored == body or rb"\x" in body


@given(st.binary(), st.binary())
def test_what_is_not_text_never_makes_a_json_string(before: bytes, after: bytes) -> None:
    body = b'"' + before + b"\xff" + after + b'"'
    with pytest.raises(json.JSONDecodeError):
        json.loads(body_text(body))


@given(st.text(alphabet=st.characters()))
@example("\ud800")
@example("\0")
def test_text_that_a_program_made_is_kept_too(text: str) -> None:
    kept = storable(text)
    kept.encode("utf-8")
    assert "\0" not in kept
    assert kept == text or "\0" in text or re.search("[\ud800-\udfff]", text)
