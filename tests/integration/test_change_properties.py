"""Whatever changes come, in whatever chunks and batches: the target is as if applied one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from change_script import STEPS, Script, Step
from databases import Databases
from integration.change_stream import START, ChangeStream, shared_streams
from tidegate.core.identity import new_attempt_id
from tidegate.core.relation import Endpoint, Relation
from tidegate.load.sources.cdc.landing import Chunks, LandedChanges

LARGE, FIRST = "x" * 400, 10_000
GIVEN: dict[str, Any] = {
    "before": STEPS,
    "steps": STEPS,
    "whole": st.booleans(),
    "soft": st.booleans(),
    "chunk_rows": st.integers(1, 6),
    "batch_rows": st.sampled_from([1, 3, 100]),
}
TRUNCATED: dict[str, Any] = {
    "before": [("insert", 1, 1, "x"), ("insert", 2, 1, "y"), ("insert", 3, None, None)],
    "steps": [
        *[("delete", 1), ("commit",), ("update", 2, 5), ("commit",)],
        *[("truncate",), ("insert", 1, 2, "z"), ("insert", 4, 1, None), ("delete", 4)],
        *[("commit",), ("insert", 3, 1, "x")],
    ],
    "whole": False,
    "chunk_rows": 1,
    "batch_rows": 100,
}
PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def stream(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChangeStream]:
    with shared_streams(kept_databases, tmp_path_factory.mktemp("changes")) as make:
        yield make("CREATE TABLE orders (id int PRIMARY KEY, n int, body text)")


def follow(stream: ChangeStream, script: Script) -> None:
    """Load until nothing is left."""
    while stream.load(messages=iter(script.messages))[0].high is not None:
        pass


def play(
    stream: ChangeStream,
    before: list[Step],
    steps: list[Step],
    whole: bool,
    soft: bool,
    chunk_rows: int,
    batch_rows: int,
) -> None:
    stream.target = Endpoint("warehouse", Relation("raw", f"orders_{stream.token}"))
    stream.value, stream.soft = START, soft
    script = Script(whole, soft)
    stream.chunks, stream.batch_rows = Chunks(rows=100), 1000
    script.play([step for step in before if step[0] != "truncate"])
    follow(stream, script)
    stream.chunks, stream.batch_rows = Chunks(rows=chunk_rows), batch_rows
    script.play(steps)
    follow(stream, script)
    if script.messages:
        assert target_rows(stream) == script.expected()


def target_rows(stream: ChangeStream) -> list[tuple[Any, ...]]:
    deleted = ", (extract(epoch FROM deleted_at - '2000-01-01Z') * 1000000)::bigint"
    return stream.place.target.execute(
        f"SELECT id, n, body{deleted if stream.soft else ''} FROM {stream.target.relation}"
        " ORDER BY id"
    )


@settings(PATIENT, max_examples=20)
@example(**TRUNCATED, soft=False)
@example(**TRUNCATED, soft=True)
@given(**GIVEN)
def test_the_target_is_as_if_each_change_had_been_applied(
    stream: ChangeStream, **case: Any
) -> None:
    play(stream, **case)


@pytest.mark.chaos
@settings(PATIENT, max_examples=200)
@given(**GIVEN)
def test_the_target_is_so_in_many_more_cases(stream: ChangeStream, **case: Any) -> None:
    play(stream, **case)


def one_transaction(rows: int) -> Iterator[tuple[str, bytes]]:
    """The messages of a transaction, one after the other, as they come from a server."""
    one = Script(whole=False, soft=False)
    one.play([("insert", FIRST, 1, LARGE)])
    begin, relation, (lsn, insert), commit = one.messages
    yield begin
    yield relation
    for number in range(FIRST, FIRST + rows):
        yield lsn, insert.replace(b"%d" % FIRST, b"%d" % number)
    yield commit


def peak(stream: ChangeStream, rows: int, chunks: Chunks) -> tuple[int, LandedChanges]:
    """The memory that one transaction takes to be landed."""
    stream.value, stream.batch_rows, stream.soft = START, 1_000_000, False
    tracemalloc.start()
    landed = stream.land(new_attempt_id(), messages=one_transaction(rows), chunks=chunks)
    _, found = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert landed.rows == landed.changes == rows
    return found, landed


@pytest.mark.parametrize(
    "chunks", [Chunks(rows=300), pytest.param(Chunks(bytes=150_000), marks=pytest.mark.chaos)]
)
def test_ten_times_the_rows_take_no_more_memory(stream: ChangeStream, chunks: Chunks) -> None:
    small, _ = peak(stream, 900, chunks)
    large, landed = peak(stream, 9_000, chunks)
    assert landed.chunks >= 30
    assert large < 1.3 * small
    # and it is the chunks that keep it so
    assert peak(stream, 9_000, Chunks())[0] > 4 * large
