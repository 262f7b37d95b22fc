"""A lake's table as its metadata tells it, against a model that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.relation import Relation
from tidegate.iceberg.table import (
    MAIN,
    PICKED_ID,
    PIPELINE,
    UPDATE_ID,
    IcebergTable,
    PublishEvidence,
    Snapshot,
    attempt_of,
    branch_name,
    ledger_schema,
)


@dataclass
class Tree:
    """Every snapshot that ever was, and which of them are still kept."""

    parents: dict[int, int | None] = field(default_factory=dict)
    loads: dict[int, str] = field(default_factory=dict)
    bases: dict[str, int | None] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    expired: set[int] = field(default_factory=set)

    def commit(self, ref: str, load: str | None = None) -> None:
        number = len(self.parents) + 1
        self.parents[number] = self.refs.get(ref)
        if load is not None:
            self.loads[number] = load
        self.refs[ref] = number

    def stage(self, load: str) -> None:
        """A load upon a branch of its own, made where main stands."""
        base = self.refs.get(MAIN)
        if base is not None:
            self.refs[load] = base
        self.bases[load] = base
        self.commit(load, load)

    def forward(self, load: str) -> None:
        if self.refs.get(MAIN) is None or self.refs[MAIN] in self.chain(load):
            self.refs[MAIN] = self.refs[load]

    def chain(self, ref: str = MAIN) -> list[int]:
        """The whole past of a branch, newest first."""
        found, at = [], self.refs.get(ref)
        while at is not None:
            found.append(at)
            at = self.parents[at]
        return found

    def kept(self, ref: str = MAIN) -> list[int]:
        return list(takewhile(lambda one: one not in self.expired, self.chain(ref)))

    def expire(self, numbers: set[int]) -> None:
        self.expired |= numbers - set(self.refs.values())

    def table(self) -> IcebergTable:
        return IcebergTable(
            relation=Relation("raw", "orders"),
            uuid="u",
            location="file:/nowhere",
            fields=(),
            snapshots={
                number: Snapshot(
                    number,
                    parent,
                    {UPDATE_ID: self.loads[number]} if number in self.loads else {},
                )
                for number, parent in self.parents.items()
                if number not in self.expired
            },
            refs=dict(self.refs),
        )


@st.composite
def trees(draw: st.DrawFn, *, expiring: bool = True) -> Tree:
    """What loads, other writers, a person who rolls back, and maintenance may leave behind."""
    tree = Tree()
    for _ in range(draw(st.integers(1, 14))):
        branches = sorted(set(tree.refs) - {MAIN})
        steps = ["external", "stage"]
        steps += ["forward", "drop"] if branches else []
        steps += ["roll back"] if len(tree.kept()) > 1 else []
        steps += ["expire"] if expiring and tree.parents else []
        step = draw(st.sampled_from(steps))
        if step == "external":
            tree.commit(MAIN)
        elif step == "stage":
            tree.stage(f"load{len(tree.bases)}")
        elif step == "forward":
            tree.forward(draw(st.sampled_from(branches)))
        elif step == "drop":
            del tree.refs[draw(st.sampled_from(branches))]
        elif step == "roll back":
            tree.refs[MAIN] = draw(st.sampled_from(tree.kept()[1:]))
        else:
            tree.expire(draw(st.sets(st.sampled_from(sorted(tree.parents)))))
    return tree


@given(trees())
def test_a_branch_is_what_is_kept_of_its_past(tree: Tree) -> None:
    table = tree.table()
    for ref in [*tree.refs, "no such branch"]:
        assert [one.snapshot_id for one in table.ancestors(ref)] == tree.kept(ref)
        assert table.is_cut(ref) == (len(tree.kept(ref)) < len(tree.chain(ref)))


@given(trees())
def test_what_is_seen_of_a_load_is_true_or_unknown(tree: Tree) -> None:
    table = tree.table()
    for load, base in tree.bases.items():
        is_in = any(tree.loads.get(number) == load for number in tree.chain())
        seen = table.see(load, base)
        if seen is not PublishEvidence.UNKNOWN:
            assert (seen is PublishEvidence.PUBLISHED) == is_in
        else:
            assert table.is_cut()
        assert table.holds(load) <= is_in


@given(trees(expiring=False))
def test_where_nothing_expired_everything_is_known(tree: Tree) -> None:
    table = tree.table()
    for load, base in tree.bases.items():
        is_in = any(tree.loads.get(number) == load for number in tree.chain())
        assert table.see(load, base) is (
            PublishEvidence.PUBLISHED if is_in else PublishEvidence.UNPUBLISHED
        )
        assert table.holds(load) == is_in


def one_snapshot(**summary: int | str) -> IcebergTable:
    told = {name.replace("_", "-"): str(value) for name, value in summary.items()}
    tree = Tree()
    tree.commit(MAIN)
    table = tree.table()
    return IcebergTable(
        table.relation, "u", "file:/nowhere", (), {1: Snapshot(1, None, told)}, table.refs
    )


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ({}, False),
        ({"total_records": 0}, False),
        ({"total_records": 3}, True),
        ({"total_records": 3, "total_position_deletes": 2}, True),
        # As many deletes as rows: they may be those of rows that were rewritten long ago.
        ({"total_records": 3, "total_position_deletes": 3}, None),
        ({"total_records": 3, "total_position_deletes": 5}, None),
        ({"total_records": 3, "total_equality_deletes": 1}, None),
    ],
)
def test_whether_a_table_has_rows_is_said_only_where_it_is_certain(
    summary: dict[str, int], expected: bool | None
) -> None:
    assert one_snapshot(**summary).has_rows() is expected


def test_a_table_tells_whose_load_was_the_last() -> None:
    said = ({PIPELINE: "crm.orders"}, {PIPELINE: "shop.orders"}, {"engine": "spark"})
    chain = {n: Snapshot(n, n - 1 or None, summary) for n, summary in enumerate(said, 1)}
    table = IcebergTable(Relation("raw", "t"), "u", "file:/nowhere", (), chain, {MAIN: 3})
    assert table.loader == "shop.orders"
    assert Tree().table().loader is None


def test_a_table_without_a_snapshot_has_no_rows() -> None:
    empty = Tree().table()
    assert (empty.has_rows(), empty.rows(), list(empty.ancestors())) == (False, 0, [])


def test_a_load_that_iceberg_has_picked_up_for_main_is_known_by_its_name() -> None:
    assert Snapshot(1, None, {PICKED_ID: "u"}).update_id == "u"
    assert Snapshot(1, None, {PICKED_ID: "other", UPDATE_ID: "u"}).update_id == "u"


@given(st.uuids())
def test_the_attempt_of_a_branch_is_told_by_its_name(attempt: object) -> None:
    attempt_id = str(attempt).replace("-", "")
    assert attempt_of(branch_name(attempt_id)) == attempt_id
    assert attempt_of(f"x{branch_name(attempt_id)}") is None
    assert attempt_of(branch_name(attempt_id)[:-1]) is None


def test_a_long_name_of_a_project_gives_a_schema_that_postgres_can_hold() -> None:
    schema = ledger_schema("p" * 60, "lake", "embedded")
    assert len(schema) <= 63
    assert schema != ledger_schema("p" * 61, "lake", "embedded")


def test_a_snapshot_tells_of_its_load_and_one_that_was_picked_up_by_where_it_comes_from() -> None:
    marks = {
        UPDATE_ID: "u2",
        "tidegate.pipeline": "shop.orders",
        "tidegate.generation": "1",
        "tidegate.version": "4",
        "tidegate.from": "",
        "tidegate.to": "9",
        "tidegate.position": '["9", "7"]',
        "tidegate.kind": "tie",
        "tidegate.rows": "3",
    }
    snapshots = [
        Snapshot(1, None, {UPDATE_ID: "a DataFrame's"}),
        Snapshot(2, None, marks),
        Snapshot(3, 1, {PICKED_ID: "u2", "source-snapshot-id": "2"}),
    ]
    table = IcebergTable(
        Relation("raw", "orders"),
        "uuid",
        "/table",
        (),
        {one.snapshot_id: one for one in snapshots},
        {MAIN: 3},
    )
    (found,) = table.loads("shop.orders")
    assert (found.update_id, found.start, found.value) == ("u2", None, "9")
    assert (found.place, found.position, found.rows, found.kind) == ((1, 4), ("9", "7"), 3, "tie")
    assert not list(table.loads("shop.other"))
