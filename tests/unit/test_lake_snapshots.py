"""What a lake's chain of snapshots tells, and how it is cut into batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.relation import Relation
from tidegate.iceberg.table import IcebergField, IcebergTable, Snapshot
from tidegate.load.sources.iceberg_table import added, read_changes

KINDS = st.sampled_from(["append", "overwrite", "delete", "replace"])
CHAINS = st.lists(st.tuples(KINDS, st.integers(0, 20)), min_size=1, max_size=20)


def chain(*snapshots: tuple[str, int]) -> list[Snapshot]:
    return [
        Snapshot(number, number - 1 or None, {"added-records": str(rows)}, kind)
        for number, (kind, rows) in enumerate(snapshots, 1)
    ]


def table(snapshots: list[Snapshot], main: int) -> IcebergTable:
    return IcebergTable(
        Relation("raw", "orders"),
        "uuid",
        "file:///nowhere",
        (IcebergField(1, "id", "int"), IcebergField(2, "note", "string")),
        {one.snapshot_id: one for one in snapshots},
        {"main": main},
        schemas={0: {1: "id", 2: "old"}, 1: {1: "id", 2: "note"}},
    )


@given(CHAINS, st.integers(1, 40))
def test_pieces_hold_the_whole_chain_in_order_and_no_more_rows_than_they_must(
    kinds: list[tuple[str, int]], limit: int
) -> None:
    whole = rest = chain(*kinds)
    pieces: list[list[Snapshot]] = []
    while rest:
        pieces.append(read_changes(rest, limit))
        assert pieces[-1]
        rest = rest[len(pieces[-1]) :]
    assert [one for piece in pieces for one in piece] == whole
    for piece in pieces:
        bring = [one for one in piece if added([one])]
        assert added(piece) <= limit or len(bring) == 1
    # Only at the end may a piece bring nothing: else it would be a load of its own for nothing.
    assert all(added(piece) for piece in pieces[:-1])


def test_what_came_after_a_snapshot_is_told_while_it_is_an_ancestor() -> None:
    snapshots = [*chain(("append", 1), ("append", 1), ("delete", 0)), Snapshot(9, 1)]
    assert table(snapshots, 3).since(1) == snapshots[1:3]
    assert table(snapshots, 3).since(3) == []
    assert table(snapshots, 3).since(9) is None
    assert table(snapshots, 9).since(2) is None
    assert table(snapshots[1:], 3).since(1) is None


def test_columns_are_called_as_the_snapshot_knew_them() -> None:
    snapshots = [Snapshot(1, None, schema_id=0), Snapshot(2, 1, schema_id=1), Snapshot(3, 2)]
    found = table(snapshots, 3)
    assert found.names_at(1) == {1: "id", 2: "old"}
    assert found.names_at(2) == found.names_at(3) == {1: "id", 2: "note"}
