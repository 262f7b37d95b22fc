"""A lake's table as its metadata, its catalog and its statements describe it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.sync import Layout, SortTerm, Term
from tidegate.core.errors import DeclarationError, SettingsError
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape, StagedColumn
from tidegate.iceberg.catalog import Catalog, backticked
from tidegate.iceberg.jars import ICEBERG, POSTGRES, fetched, find_jars, lake_conf
from tidegate.iceberg.metadata import READABLE, check_kind
from tidegate.iceberg.statements import find_bounds, merge_rows
from tidegate.iceberg.table import (
    MAIN,
    PICKED_ID,
    PIPELINE,
    UPDATE_ID,
    IcebergField,
    IcebergTable,
    PublishEvidence,
    Snapshot,
    attempt_of,
    branch_name,
    ledger_schema,
)
from tidegate.load.sources.iceberg_table import added, read_changes


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


def catalog(kind: str = "embedded", control: str = "host=db dbname=x", **options: str) -> Catalog:
    def lease() -> None:
        raise AssertionError("nothing is asked")

    nobody: Callable[[], object] = lease
    return Catalog("lake", kind, options, Path("/lake"), "s", lambda: control, nobody)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["/var/run/postgresql", "@abstract"])
def test_a_control_database_behind_a_unix_socket_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(SettingsError) as raised:
        catalog(control=f"host={host} dbname=x").spark_conf()
    assert "Java cannot reach over a Unix socket" in raised.value.message
    assert raised.value.hint == "give project.control with a host name, such as localhost"


def test_a_catalog_shows_none_of_its_options() -> None:
    assert "hidden" not in repr(catalog("rest", token="hidden"))


@pytest.mark.parametrize("kind", sorted({*READABLE, "embedded"}))
def test_catalogs_that_can_be_read_without_spark_are_accepted(kind: str) -> None:
    check_kind(catalog(kind))


@pytest.mark.parametrize("kind", ["rset", "nessie", "org.example.Catalog"])
def test_other_catalogs_are_refused_by_name(kind: str) -> None:
    with pytest.raises(SettingsError, match=f'catalog = "{kind}" is not one that Tidegate can'):
        check_kind(catalog(kind))


def test_jars_that_were_fetched_before_are_named_by_their_files(tmp_path: Path) -> None:
    conf = {"spark.jars.ivy": str(tmp_path)}
    assert find_jars(conf, postgres=True).to_fetch == (ICEBERG, POSTGRES)
    assert lake_conf(conf, postgres=True)["spark.jars.packages"] == f"{ICEBERG},{POSTGRES}"
    (tmp_path / "jars").mkdir()
    for package in (ICEBERG, POSTGRES):
        fetched(conf, package).write_text("")
    assert find_jars(conf, postgres=True).to_fetch == ()
    found = lake_conf(conf, postgres=True)
    assert "spark.jars.packages" not in found
    assert found["spark.jars"].count(str(tmp_path)) == 2


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
def test_jars_that_are_named_must_be_there(tmp_path: Path, prefix: str) -> None:
    jar = tmp_path / "iceberg-spark-runtime.jar"
    conf = {"spark.jars": f"{prefix}{jar},s3://elsewhere/postgresql.jar"}
    with pytest.raises(SettingsError, match=r"names .*iceberg-spark-runtime\.jar, which is not"):
        lake_conf(conf, postgres=True)
    jar.write_text("")
    assert "spark.jars" not in lake_conf(conf, postgres=True)


def shape(**kinds: str) -> Shape:
    """Every column is part of the key."""
    columns = tuple(StagedColumn(name, kind, kind) for name, kind in kinds.items())
    return Shape(columns, tuple(kinds), None, key_is_unique=True)


def test_a_merge_names_the_bounds_of_its_keys() -> None:
    keyed = shape(region="string", id="bigint")
    assert find_bounds("rows", keyed) == (
        "SELECT CAST(min(`region`) AS string), CAST(max(`region`) AS string), "
        "CAST(min(`id`) AS string), CAST(max(`id`) AS string) FROM rows"
    )
    statement = merge_rows(
        "t", "rows", keyed, newest_wins=True, full=False, bounds=("o'east", "west", "1", "9")
    )
    assert (
        "ON t.`region` = s.`region` AND t.`id` = s.`id`"
        " AND t.`region` >= CAST('o\\'east' AS string) AND t.`region` <= CAST('west' AS string)"
        " AND t.`id` >= CAST('1' AS bigint) AND t.`id` <= CAST('9' AS bigint) WHEN" in statement
    )


def test_keys_that_change_on_their_way_through_text_have_no_bounds() -> None:
    assert find_bounds("rows", shape(hash="binary", ratio="double")) is None
    both = shape(hash="binary", id="int")
    assert find_bounds("rows", both) == (
        "SELECT CAST(min(`id`) AS string), CAST(max(`id`) AS string) FROM rows"
    )
    statement = merge_rows("t", "rows", both, newest_wins=True, full=False, bounds=("1", None))
    assert "AND t.`id` >= CAST('1' AS int) WHEN" in statement


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("region", "`region`"),
        ("day(created_at)", "days(`created_at`)"),
        ("days(created_at)", "days(`created_at`)"),
        ("HOUR( at )", "hours(`at`)"),
        ("bucket(16, id)", "bucket(16, `id`)"),
        ("truncate(4,name)", "truncate(4, `name`)"),
        ('"a b"', "`a b`"),
        ('day("at")', "days(`at`)"),
    ],
)
def test_a_partition_is_written_as_iceberg_wants_it(text: str, statement: str) -> None:
    assert Term.parse(text).render(backticked) == statement


@pytest.mark.parametrize("text", ["week(at)", "bucket(id)", "bucket(0, id)", "day(3, at)"])
def test_what_is_no_way_to_divide_a_table_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="not a way to divide"):
        Term.parse(text)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("id", "`id`"),
        ("id desc", "`id` DESC"),
        ("day(at) ASC nulls last", "days(`at`) ASC NULLS LAST"),
        ("description", "`description`"),
    ],
)
def test_an_order_has_a_direction(text: str, statement: str) -> None:
    assert SortTerm.parse(text).render(backticked) == statement


def test_a_layout_knows_its_columns_once() -> None:
    layout = Layout.parse(["day(at)", "id"], ["id desc", "name"], {})
    assert layout.columns == ("at", "id", "name")
    assert not layout.is_plain
    assert Layout().is_plain


@given(st.text(min_size=1).filter(lambda text: text.strip() == text and "(" not in text))
def test_no_name_gets_out_of_its_quotes(name: str) -> None:
    quoted = backticked(Term(name).column)
    assert quoted[0] == quoted[-1] == "`"
    assert "`" not in quoted[1:-1].replace("``", "")
