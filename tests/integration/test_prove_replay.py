"""The history of a proof: the order of writes, what is late, what is changed; and the copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conftest import MakeDatabase
from integration.conftest import Database
from tidegate.core.relation import Relation, Table
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection, begin_read_only, connect
from tidegate.testing import replay
from tidegate.testing.sample import ROWS, SampleSize, invent_sample, make_sample_table, read_sample
from tidegate.testing.source_copy import Rebuilding

Copied = Callable[..., "Copy"]


class Copy:
    """The sample of table t, read from one database into another."""

    def __init__(self, source: Database, target: Database, cursor: str | None) -> None:
        self.source, self.cursor = source, cursor
        self.connection: Connection = connect(target.conninfo, name="copy")
        self.connection.execute("SET search_path = ''")
        with connect(source.conninfo, name="source") as reading:
            reading.execute("SET search_path = ''")
            begin_read_only(reading)
            found = describe_table(reading, Relation.parse("public.t"))
            assert found is not None
            self.table: Table = found
            rebuilding = Rebuilding(reading, self.connection)
            self.types = rebuilding.table(found, cursor)
            self.notes = rebuilding.notes
            make_sample_table(self.connection, found, self.types)
            self.rows = read_sample(
                reading, self.connection, found, found.primary_key, cursor, SampleSize(100, 0)
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

    def apply_all(self) -> list[Any]:
        """What all steps together give."""
        self.arrange()
        for step in range(1, self.steps + 1):
            replay.apply_step(self.connection, self.table, step)
        return self.connection.execute("SELECT t::text FROM public.t ORDER BY 1").fetchall()

    def content(self) -> list[Any]:
        """What is in the source."""
        return self.source.execute("SELECT t::text FROM t ORDER BY 1")


@pytest.fixture
def copied(make_database: MakeDatabase) -> Copied:
    """A maker of copies of what these statements make."""

    def make(*statements: str, cursor: str | None = "at", taken: str = "SELECT 1") -> Copy:
        source, target = (Database(make_database(name)) for name in ("source", "copy"))
        source.execute(*statements)
        target.execute(taken)
        return Copy(source, target, cursor)

    return make


def stamped(low: int, high: int, hours: str = "n") -> str:
    """Rows of one transaction, as many hours after the new year."""
    return (
        f"INSERT INTO t SELECT n, '2026-01-01'::timestamptz + {hours} * interval '1 hour'"
        f" FROM generate_series({low}, {high}) n"
    )


def test_rows_come_in_the_order_of_their_stamps_and_one_stamp_is_never_parted(
    copied: Copied,
) -> None:
    rows = copied(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL)",
        stamped(12, 29, "n / 6"),
        stamped(30, 35, "n / 6"),
        "INSERT INTO t VALUES (99, now() + interval '1 hour')",
    )
    # What is stamped in the future is left out.
    assert replay.drop_future(rows.connection, rows.table, "at", "UTC") == 1
    arranged = rows.arrange()
    assert [key for key, _, _ in arranged] == list(range(12, 36))
    steps = {n: {step for key, step, _ in arranged if key // 6 == n} for n in range(2, 6)}
    assert steps == {2: {1}, 3: {2}, 4: {3}, 5: {4}}


def test_a_row_written_late_comes_one_step_after_the_row_that_was_stamped_higher(
    copied: Copied,
) -> None:
    copy = copied(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL, note text)",
        stamped(1, 8),
        "UPDATE t SET note = 'not stamped' WHERE id = 3",
        stamped(9, 12),
    )
    rows = {key: (step, witness) for key, step, witness in copy.arrange()}
    assert rows[3] == (rows[8][0] + 1, 8)
    assert all(witness is None for key, (_, witness) in rows.items() if key != 3)


@pytest.mark.parametrize(
    ("kind", "stamps"),
    [
        ("timestamptz", ("2026-01-01 12:00", "2026-01-01 11:55", "2026-01-01 11:45")),
        ("timestamp", ("2026-01-01 12:00", "2026-01-01 11:55", "2026-01-01 11:45")),
        ("bigint", ("100", "95", "85")),
    ],
)
def test_stamps_of_transactions_side_by_side_count_as_in_order(
    copied: Copied, kind: str, stamps: tuple[str, ...]
) -> None:
    rows = copied(
        f"CREATE TABLE t (id int PRIMARY KEY, at {kind} NOT NULL)",
        *(f"INSERT INTO t VALUES ({n}, '{stamp}')" for n, stamp in enumerate(stamps, 1)),
    ).arrange()
    assert [(key, witness) for key, _, witness in rows] == [(2, None), (1, None), (3, 1)]


def test_without_a_cursor_rows_come_as_they_were_written(copied: Copied) -> None:
    rows = copied(
        "CREATE TABLE t (id int PRIMARY KEY, note text)",
        *(f"INSERT INTO t VALUES ({9 - n})" for n in range(8)),
        cursor=None,
    ).arrange()
    assert [key for key, _, _ in rows] == [9, 8, 7, 6, 5, 4, 3, 2]
    assert {step for _, step, _ in rows} == {1, 2, 3, 4}


def test_the_steps_together_give_the_source_and_the_changes_raise_the_cursor(
    copied: Copied,
) -> None:
    copy = copied(
        "CREATE TYPE mood AS ENUM ('fine', 'angry')",
        "CREATE TABLE t (id int PRIMARY KEY, code text UNIQUE, at timestamptz NOT NULL, mood mood)",
        "INSERT INTO t SELECT n, 'c' || n, now() - (30 - n) * interval '1 hour',"
        " CASE WHEN n % 2 = 0 THEN 'fine'::mood ELSE 'angry' END FROM generate_series(1, 20) n",
    )
    assert copy.apply_all() == copy.content()
    changes = replay.plan_changes(copy.connection, copy.table, ("id",), "at", 7, "UTC")
    assert changes == 4
    assert replay.apply_changes(copy.connection, copy.table) == 4
    row = copy.connection.execute(
        "SELECT count(*) FILTER (WHERE at > clock_timestamp() - interval '1 minute'),"
        " count(*) FILTER (WHERE at > clock_timestamp()), count(DISTINCT id), count(DISTINCT at),"
        " bool_and(code = 'c' || id) FROM public.t"
    ).fetchone()
    assert row == (4, 0, 20, 20, True)


def test_a_type_that_cannot_be_built_again_becomes_text_with_a_note(copied: Copied) -> None:
    copy = copied(
        "CREATE FUNCTION odd(int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 % 2 = 1'",
        "CREATE DOMAIN odd_number AS int CHECK (odd(VALUE))",
        "CREATE TYPE pair AS (a int, b odd_number)",
        "CREATE TYPE words AS ENUM ('some', 'words')",
        "CREATE TABLE t (id odd_number PRIMARY KEY, pair pair, words words, pairs pair[])",
        "INSERT INTO t VALUES (1, (1, 3), 'words', ARRAY[(5, 7)::pair])",
        cursor=None,
        taken="CREATE DOMAIN words AS int",
    )
    assert copy.notes == ["column words is text here: public.words cannot be built again"]
    assert copy.types["pair"] == "public.pair"
    assert copy.apply_all() == copy.content()


def test_rows_can_be_made_up_for_many_types(copied: Copied) -> None:
    copy = copied(
        "CREATE TYPE mood AS ENUM ('fine', 'angry')",
        "CREATE TABLE t (id smallint PRIMARY KEY, a varchar(3) NOT NULL, b mood NOT NULL,"
        " c numeric(6,2) NOT NULL, d uuid NOT NULL, e jsonb NOT NULL, f text[] NOT NULL,"
        " g date NOT NULL, h timestamp(0) NOT NULL, i bytea NOT NULL, j polygon)",
        cursor="h",
    )
    assert copy.rows == 0
    assert invent_sample(copy.connection, copy.table, copy.types) == ROWS
    assert len(copy.apply_all()) == ROWS
