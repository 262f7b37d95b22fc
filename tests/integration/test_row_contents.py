"""What is in rows reaches no error, history, answer or notice; the log of the machine has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from integration.conftest import Database, MakePlace
from integration.orders import ORDERS
from integration.recorded import Bench, open_bench
from tidegate.core.errors import LoadError, TidegateError, without_values, words
from tidegate.jobs.attempt import LiveAttempt
from tidegate.postgres.connection import first_line, translate
from tidegate.spark.task_outcome import TaskFailure, carried_failure, failure, spark_reason
from tidegate.spark.transform import apply_transform

SECRET = "marker4929secret"
TABLES = """
CREATE SCHEMA IF NOT EXISTS strict;
CREATE TABLE strict.people (card text PRIMARY KEY CHECK (card NOT LIKE '%checked'),
                            name text NOT NULL, friend text REFERENCES strict.people,
                            n int, day date, mood jsonb);
INSERT INTO strict.people VALUES ('{secret}', 'x');
"""
STATEMENTS = {
    "NOT NULL": "INSERT INTO strict.people VALUES ('{secret}-2', NULL)",
    "unique": "INSERT INTO strict.people VALUES ('{secret}', 'y')",
    "check": "INSERT INTO strict.people VALUES ('{secret}checked', 'y')",
    "foreign key": "INSERT INTO strict.people VALUES ('other', 'y', '{secret}-3')",
    "cast": "INSERT INTO strict.people VALUES ('c', 'y', NULL, '{secret}'::text::int)",
    "cast with quotes": "SELECT 'a \"{secret}\" b\nc'::text::date",
    "json": "SELECT '{{\"a\": {secret}}}'::text::jsonb",
}


Way = Callable[[Database, str], None]


@pytest.fixture
def bench(make_place: MakePlace) -> Iterator[Bench]:
    with open_bench(make_place(ORDERS)) as opened:
        opened.place.target.execute(TABLES.format(secret=SECRET))
        yield opened


def everything(control: Database) -> str:
    """All that the control database holds, which is what histories, answers and notices show."""
    with control.connect() as session:
        tables = session.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tidegate_control'::regnamespace"
            " AND relkind = 'r'"
        ).fetchall()
        parts = []
        for (name,) in tables:
            rows = session.execute(
                sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier("tidegate_control", name))
            )
            parts += [row[0] for row in rows]
    return "\n".join(parts)


def raw(place: Database, statement: str) -> None:
    place.execute(statement.format(secret=SECRET))


def translated(place: Database, statement: str) -> None:
    try:
        raw(place, statement)
    except psycopg.Error as error:
        raise translate(error, "publishing into strict.people") from error


def through_a_task(place: Database, statement: str) -> None:
    """As it comes out of a Spark task: an outcome in JSON, inside a long text of Spark's."""
    try:
        raw(place, statement)
    except psycopg.Error as error:
        carried = TaskFailure(failure(error, "destination"))
    found = carried_failure(RuntimeError(f"org.apache.spark.Boom: {carried}\n\tat x.y"))
    assert found is not None
    raise found


def transformed(place: Database, statement: str) -> None:
    def transform(frame: Any) -> Any:
        return int(f"{SECRET} of {frame}")

    frame: Any = "a frame"
    apply_transform(transform, frame, "orders")


def test_rows_that_fail_show_in_the_log_of_the_machine_alone(bench: Bench) -> None:
    log = bench.place.folder / ".tidegate" / "logs" / "failures.log"
    ways: list[tuple[Way, str]] = [(raw, kind) for kind in STATEMENTS]
    for kind in ("unique", "check", "cast with quotes", "json"):
        ways += [(translated, kind), (through_a_task, kind)]
    for way, kind in [*ways, (transformed, "code")]:

        def work(_: LiveAttempt, way: Way = way, kind: str = kind) -> dict[str, Any]:
            way(bench.place.target, STATEMENTS.get(kind, ""))
            return {}

        log.unlink(missing_ok=True)
        with pytest.raises((psycopg.Error, TidegateError)) as raised:
            bench.work(work)
        if isinstance(raised.value, TidegateError):
            assert SECRET not in str(raised.value), kind
        (newest, *_) = bench.tasks()
        assert newest.error, kind
        assert newest.traceback, kind
        assert SECRET in log.read_text(), kind
        assert log.stat().st_mode & 0o777 == 0o600
    kept = everything(bench.place.control)
    assert "strict.people" in kept
    assert SECRET not in kept


def test_names_stay_in_what_is_said_and_values_go() -> None:
    assert first_line(psycopg.errors.InvalidTextRepresentation('invalid "it": "x"\nLINE 1')) == (
        "invalid …"
    )
    duplicate = 'duplicate key value violates unique constraint "people_pkey"'
    assert first_line(psycopg.errors.UniqueViolation(f"{duplicate}\nDETAIL: Key (a)=(b)")) == (
        duplicate
    )
    assert words(NameError("name 'total' is not defined")) == (
        "NameError: name 'total' is not defined"
    )
    assert words(ValueError("invalid literal for int() with base 10: 'it''s'")) == (
        "ValueError: invalid literal for int() with base 10: …"
    )
    assert words(LoadError("as it is: 'x'", "hint")) == "as it is: 'x'\n  hint"
    said = "[CAST_INVALID_INPUT] The value 'it's' of the type \"STRING\" cannot be cast"
    assert spark_reason(RuntimeError(f"x.SparkNumberFormatException: {said}")) == (
        "[CAST_INVALID_INPUT] The value … of the type … cannot be cast"
    )
    assert without_values("it doesn't and can't") == "it doesn't and can't"
