"""Whatever changes come, in whatever chunks and batches: the target is as if applied one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from change_script import STEPS, Script, Step
from integration.change_stream import START, ChangeStream
from integration.conftest import MakePlace
from tidegate.model.relation import Endpoint, Relation
from tidegate.pipeline.landing import Chunks


@pytest.fixture
def stream(make_place: MakePlace) -> Iterator[ChangeStream]:
    place = make_place(databases=2)
    made = ChangeStream(place.open(), place)
    made.open("CREATE TABLE orders (id int PRIMARY KEY, n int, body text)")
    yield made
    made.close()


def follow(stream: ChangeStream, script: Script) -> None:
    """Load until nothing is left."""
    while True:
        landed, _ = stream.load(messages=iter(script.messages))
        if landed.high is None:
            return


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=STEPS,
    steps=STEPS,
    whole=st.booleans(),
    soft=st.booleans(),
    chunk_rows=st.integers(1, 6),
    batch_rows=st.sampled_from([1, 3, 100]),
)
def test_the_target_is_as_if_each_change_had_been_applied(
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
    if not script.messages:
        return
    assert target_rows(stream) == script.expected()


def target_rows(stream: ChangeStream) -> list[tuple[Any, ...]]:
    deleted = ", (extract(epoch FROM deleted_at - '2000-01-01Z') * 1000000)::bigint"
    return stream.place.target.execute(
        f"SELECT id, n, body{deleted if stream.soft else ''} FROM {stream.target.relation}"
        " ORDER BY id"
    )
