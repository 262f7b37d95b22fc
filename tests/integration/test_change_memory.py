"""One transaction, however large, is landed in the memory of one chunk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from change_script import Script
from integration.change_stream import START, ChangeStream
from integration.conftest import MakePlace
from tidegate.model.identity import new_attempt_id
from tidegate.pipeline.landing import Chunks, Landed

LARGE = "x" * 400


@pytest.fixture
def stream(make_place: MakePlace) -> Iterator[ChangeStream]:
    place = make_place(databases=2)
    made = ChangeStream(place.open(), place)
    made.open("CREATE TABLE orders (id int PRIMARY KEY, n int, body text)")
    yield made
    made.close()


def one_transaction(rows: int) -> Iterator[tuple[str, bytes]]:
    """The messages of a transaction, one after the other, as they come from a server."""
    first = Script(whole=False, soft=False)
    first.play([("insert", 0, 1, LARGE)])
    begin, relation, _, commit = first.messages
    yield begin
    yield relation
    for number in range(rows):
        one = Script(whole=False, soft=False)
        one.play([("insert", number, 1, LARGE)])
        yield one.messages[2]
    yield commit


def peak(stream: ChangeStream, rows: int, chunks: Chunks) -> tuple[int, Landed]:
    stream.value = START
    tracemalloc.start()
    landed = stream.land(new_attempt_id(), messages=one_transaction(rows), chunks=chunks)
    _, found = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert landed.rows == landed.changes == rows
    return found, landed


@pytest.mark.parametrize("chunks", [Chunks(rows=1000), Chunks(bytes=500_000)])
def test_ten_times_the_rows_take_no_more_memory(stream: ChangeStream, chunks: Chunks) -> None:
    small, _ = peak(stream, 3_000, chunks)
    large, landed = peak(stream, 30_000, chunks)
    assert landed.chunks >= 30
    assert large < 1.3 * small
    # and it is the chunks that keep it so
    assert peak(stream, 30_000, Chunks())[0] > 4 * large
