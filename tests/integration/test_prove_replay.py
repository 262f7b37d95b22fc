"""The history of a proof: the order of writes, what is late, what is changed; and the copy."""

from __future__ import annotations

from typing import Any

import pytest

from integration.conftest import Database
from tidegate.model.column import Table
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection, begin_read_only, connect
from tidegate.testing import replay
from tidegate.testing.invention import ROWS
from tidegate.testing.rebuild import Rebuilding
from tidegate.testing.sample import (
    Wanted,
    invent_sample,
    make_sample_table,
    read_sample,
)


class Copy:
    """The sample of a table, read from one database into another."""

    def __init__(self, source: Database, target: Database, table: str, cursor: str | None) -> None:
        self.cursor = cursor
        self.connection: Connection = connect(target.conninfo, name="copy")
        self.connection.execute("SET search_path = ''")
        with connect(source.conninfo, name="source") as reading:
            reading.execute("SET search_path = ''")
            begin_read_only(reading)
            found = describe_table(reading, Relation.parse(table))
            assert found is not None
            self.table: Table = found
            rebuilding = Rebuilding(reading, self.connection)
            self.types = rebuilding.table(found, cursor)
            self.notes = rebuilding.notes
            make_sample_table(self.connection, found, self.types)
            self.rows = read_sample(
                reading, self.connection, found, found.primary_key, cursor, Wanted(100, 0)
            )
            reading.rollback()

    def arrange(self) -> list[tuple[Any, ...]]:
        """Key, step and witness of every row, in the order of the replay."""
        self.steps = replay.arrange(
            self.connection, self.table, self.cursor, self.table.primary_key
        )
        return self.connection.execute(
            "SELECT s.v1, s.step, w.v1 FROM tidegate_prove.sample s"
            " LEFT JOIN tidegate_prove.sample w ON w.place = s.after ORDER BY s.step, s.place"
        ).fetchall()

    def apply_all(self) -> None:
        for step in range(1, self.steps + 1):
            replay.apply_step(self.connection, self.table, step)

    def content(self) -> list[Any]:
        return self.connection.execute(
            f"SELECT t::text FROM {self.table.relation} t ORDER BY 1".encode()
        ).fetchall()


@pytest.fixture
def source(make_database: Any) -> Database:
    return Database(make_database("source"))


@pytest.fixture
def target(make_database: Any) -> Database:
    return Database(make_database("copy"))


def test_rows_come_in_the_order_of_their_stamps_and_one_stamp_is_never_parted(
    source: Database, target: Database
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL)",
        "INSERT INTO t SELECT n, '2026-01-01'::timestamptz + n / 6 * interval '1 hour'"
        " FROM generate_series(12, 29) n",
        "INSERT INTO t SELECT n, '2026-01-01'::timestamptz + n / 6 * interval '1 hour'"
        " FROM generate_series(30, 35) n",
    )
    rows = Copy(source, target, "public.t", "at").arrange()
    assert [key for key, _, _ in rows] == list(range(12, 36))
    steps = {n // 6: {step for key, step, _ in rows if key // 6 == n // 6} for n in range(12, 36)}
    assert steps == {2: {1}, 3: {2}, 4: {3}, 5: {4}}


def test_a_row_written_late_comes_one_step_after_the_row_that_was_stamped_higher(
    source: Database, target: Database
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL, note text)",
        "INSERT INTO t SELECT n, '2026-01-01'::timestamptz + n * interval '1 hour'"
        " FROM generate_series(1, 8) n",
        "UPDATE t SET note = 'not stamped' WHERE id = 3",
        "INSERT INTO t SELECT n, '2026-01-01'::timestamptz + n * interval '1 hour'"
        " FROM generate_series(9, 12) n",
    )
    copy = Copy(source, target, "public.t", "at")
    rows = {key: (step, witness) for key, step, witness in copy.arrange()}
    assert rows[3] == (rows[8][0] + 1, 8)
    assert all(witness is None for key, (_, witness) in rows.items() if key != 3)


@pytest.mark.parametrize(
    ("kind", "near", "far"),
    [
        ("timestamptz", "2026-01-01 11:55", "2026-01-01 11:45"),
        ("timestamp", "2026-01-01 11:55", "2026-01-01 11:45"),
        ("bigint", "95", "85"),
    ],
)
def test_stamps_of_transactions_side_by_side_count_as_in_order(
    source: Database, target: Database, kind: str, near: str, far: str
) -> None:
    last = "100" if kind == "bigint" else "2026-01-01 12:00"
    source.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, at {kind} NOT NULL)",
        f"INSERT INTO t VALUES (1, '{last}')",
        f"INSERT INTO t VALUES (2, '{near}')",
        f"INSERT INTO t VALUES (3, '{far}')",
    )
    rows = Copy(source, target, "public.t", "at").arrange()
    assert [(key, witness) for key, _, witness in rows] == [(2, None), (1, None), (3, 1)]


def test_without_a_cursor_rows_come_as_they_were_written(
    source: Database, target: Database
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text)",
        *(f"INSERT INTO t VALUES ({9 - n})" for n in range(8)),
    )
    rows = Copy(source, target, "public.t", None).arrange()
    assert [key for key, _, _ in rows] == [9, 8, 7, 6, 5, 4, 3, 2]
    assert {step for _, step, _ in rows} == {1, 2, 3, 4}


def test_the_steps_together_give_the_source_and_the_changes_raise_the_cursor(
    source: Database, target: Database
) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'angry')",
        "CREATE TABLE t (id int PRIMARY KEY, code text UNIQUE, at timestamptz NOT NULL, mood mood)",
        "INSERT INTO t SELECT n, 'c' || n, now() - (30 - n) * interval '1 hour',"
        " CASE WHEN n % 2 = 0 THEN 'fine'::mood ELSE 'angry' END FROM generate_series(1, 20) n",
    )
    copy = Copy(source, target, "public.t", "at")
    copy.arrange()
    copy.apply_all()
    assert copy.content() == source.execute(
        "SET TimeZone = 'UTC'", "SELECT t::text FROM t ORDER BY 1"
    )

    changes = replay.plan_changes(copy.connection, copy.table, ("id",), "at", 7, "UTC")
    assert changes == 4
    assert replay.apply_changes(copy.connection, copy.table) == 4
    row = copy.connection.execute(
        "SELECT count(*) FILTER (WHERE at > clock_timestamp() - interval '1 minute'),"
        " count(*) FILTER (WHERE at > clock_timestamp()), count(DISTINCT id), count(DISTINCT at),"
        " bool_and(code = 'c' || id) FROM public.t"
    ).fetchone()
    assert row == (4, 0, 20, 20, True)


def test_a_type_that_cannot_be_built_again_becomes_text_with_a_note(
    source: Database, target: Database
) -> None:
    source.execute(
        "CREATE FUNCTION odd(int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 % 2 = 1'",
        "CREATE DOMAIN odd_number AS int CHECK (odd(VALUE))",
        "CREATE TYPE pair AS (a int, b odd_number)",
        "CREATE TYPE words AS ENUM ('some', 'words')",
        "CREATE TABLE t (id odd_number PRIMARY KEY, pair pair, words words, pairs pair[])",
        "INSERT INTO t VALUES (1, (1, 3), 'words', ARRAY[(5, 7)::pair])",
    )
    target.execute("CREATE DOMAIN words AS int")  # the name is taken there
    copy = Copy(source, target, "public.t", None)
    assert copy.notes == ["column words is text here: public.words cannot be built again"]
    assert copy.types["pair"] == "public.pair"
    copy.arrange()
    copy.apply_all()
    assert copy.content() == source.execute("SELECT t::text FROM t")


def test_rows_stamped_in_the_future_are_left_out(source: Database, target: Database) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL)",
        "INSERT INTO t VALUES (1, now() - interval '1 hour'), (2, now() + interval '1 hour')",
    )
    copy = Copy(source, target, "public.t", "at")
    assert replay.drop_future(copy.connection, copy.table, "at", "UTC") == 1
    assert [key for key, _, _ in copy.arrange()] == [1]


def test_rows_can_be_made_up_for_many_types(source: Database, target: Database) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'angry')",
        "CREATE TABLE t (id smallint PRIMARY KEY, a varchar(3) NOT NULL, b mood NOT NULL,"
        " c numeric(6,2) NOT NULL, d uuid NOT NULL, e jsonb NOT NULL, f text[] NOT NULL,"
        " g date NOT NULL, h timestamp(0) NOT NULL, i bytea NOT NULL, j polygon)",
    )
    copy = Copy(source, target, "public.t", "h")
    assert copy.rows == 0
    assert invent_sample(copy.connection, copy.table, copy.types) == ROWS
    copy.arrange()
    copy.apply_all()
    assert len(copy.content()) == ROWS
