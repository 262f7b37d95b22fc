"""Changes of a real slot: decoded, folded, landed, staged and published into Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from integration.change_stream import ChangeStream
from integration.conftest import MakePlace

MakeStream = Callable[..., ChangeStream]
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, name text, total numeric(10,2), at timestamptz)"


@pytest.fixture
def make_stream(make_place: MakePlace) -> Iterator[MakeStream]:
    made: list[ChangeStream] = []

    def make(*ddl: str, publication: str | None = None, **options: Any) -> ChangeStream:
        place = make_place(databases=2)
        stream = ChangeStream(place.open(), place, **options)
        made.append(stream)
        stream.open(*ddl, **({} if publication is None else {"options": publication}))
        return stream

    yield make
    for stream in made:
        stream.close()


def check(stream: ChangeStream) -> None:
    assert stream.target_rows() == stream.source_rows()


def test_inserts_updates_and_deletes_arrive(make_stream: MakeStream) -> None:
    stream = make_stream(ORDERS)
    source = stream.place.source
    source.execute(
        "INSERT INTO orders SELECT n, 'name ' || n, n / 3.0, '2026-01-01'::timestamptz + n * '1h'"
        "::interval FROM generate_series(1, 100) n"
    )
    landed, published = stream.load()
    assert landed.changes == 100
    assert published is not None
    assert published.changed == 100
    check(stream)
    source.execute(
        "UPDATE orders SET name = NULL, total = 'NaN' WHERE id < 20",
        "DELETE FROM orders WHERE id BETWEEN 10 AND 30",
        "INSERT INTO orders VALUES (500, '', 1, NULL)",
    )
    landed, published = stream.load()
    assert (landed.changes, landed.more, landed.truncated) == (41, False, False)
    assert published is not None
    check(stream)
    assert stream.load()[0].high is None
