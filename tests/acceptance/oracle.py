"""What the target must hold, and what the ledger and the queue must say; plain SQL throughout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from acceptance.processes import until
from tried import count

Row = tuple[str | None, ...]

_SESSION = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET extra_float_digits = 1"


def read_rows(
    conninfo: str, relation: tuple[str, str], columns: Sequence[str], key: Sequence[str]
) -> list[Row]:
    """Every column of every row in its text form, in the order of the key."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_SESSION)
        return connection.execute(
            sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{}::text").format(sql.Identifier(name)) for name in columns
                ),
                sql.Identifier(*relation),
                sql.SQL(", ").join(map(sql.Identifier, key)),
            )
        ).fetchall()


def rows(conninfo: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """What a statement returns, if it returns anything."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(query, parameters or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def scalar(conninfo: str, query: str, *parameters: object) -> Any:
    found = rows(conninfo, query, *parameters)
    return found[0][0] if found else None


def assert_same_rows(expected: list[Row], found: list[Row]) -> None:
    """Compare as bags, so that a double row shows as one."""
    missing = Counter(expected) - Counter(found)
    surplus = Counter(found) - Counter(expected)
    count(rows_compared=len(expected), differences=missing.total() + surplus.total())
    assert not missing, f"{len(missing)} rows are missing: {list(missing)[:3]}"
    assert not surplus, f"{len(surplus)} rows should not be there: {list(surplus)[:3]}"


def assert_ledger(destination: str, schema: str = "tidegate") -> int:
    """Markers and loads match one to one and the versions have no gap; returns their number."""
    with psycopg.connect(destination, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        markers = connection.execute("SELECT update_id, target_table FROM table_updates").fetchall()
        moves = connection.execute(
            "SELECT update_id, table_name FROM watermark_log WHERE update_id IS NOT NULL"
        ).fetchall()
        versions = connection.execute(
            "SELECT s.pipeline_name, s.version, array_agg(l.version ORDER BY l.id)"
            " FROM etl_state s LEFT JOIN watermark_log l"
            " USING (pipeline_name, table_name) GROUP BY 1, 2"
        ).fetchall()
        down = connection.execute(
            "SELECT count(*) FROM watermark_log WHERE update_id IS NOT NULL"
            " AND new_watermark IS NULL AND old_watermark IS NOT NULL"
        ).fetchone()
    assert max(Counter(markers).values(), default=1) == 1, "a marker is there twice"
    assert max(Counter(update_id for update_id, _ in moves).values(), default=1) == 1, (
        "an update_id was loaded twice"
    )
    assert Counter(markers) == Counter(moves), "markers and loads do not match one to one"
    for pipeline, version, logged in versions:
        steps = [step for step in logged if step is not None]
        assert steps == list(range(1, version + 1)), f"{pipeline}: moves {steps} of {version}"
    assert down == (0,)
    return len(markers)


IDLE = {
    "locks": "SELECT * FROM tidegate_control.table_locks",
    "queued": "SELECT * FROM tidegate_control.job_queue",
    "left in the middle": "SELECT job_id, status FROM tidegate_control.jobs"
    " WHERE status NOT IN ('done', 'failed', 'cancelled')",
    "finished by two attempts": "SELECT job_id FROM tidegate_control.job_attempts"
    " WHERE outcome IN ('done', 'failed') GROUP BY job_id HAVING count(*) > 1",
    "two attempts at once": "SELECT a.job_id FROM tidegate_control.job_attempts a"
    " JOIN tidegate_control.job_attempts b ON a.job_id = b.job_id"
    " AND a.attempt_id <> b.attempt_id AND a.started_at <= b.started_at"
    " AND coalesce(a.finished_at, 'infinity') > b.started_at",
}


def assert_idle(control: str) -> None:
    """No lock, nothing queued, no job left in the middle, no job finished by two attempts."""
    with psycopg.connect(control, autocommit=True) as connection:
        found = {what: connection.execute(query).fetchall() for what, query in IDLE.items()}  # type: ignore[arg-type]
    assert found == {what: [] for what in IDLE}


@dataclass(frozen=True, slots=True)
class Published:
    """What the destination holds of one table: to be compared before and after."""

    rows: int = 0
    markers: int = 0
    version: int = 0
    watermark: str | None = None

    @property
    def nothing(self) -> bool:
        return self == Published()


def published(destination: str) -> Published:
    """Rows, markers and watermark of raw.orders, in one snapshot."""
    with psycopg.connect(destination) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

        def one(query: LiteralString) -> tuple[Any, ...]:
            return connection.execute(query).fetchone() or (0, None)

        table, ledger = one("SELECT to_regclass('raw.orders'), to_regclass('tidegate.etl_state')")
        rows = one("SELECT count(*) FROM raw.orders")[0] if table else 0
        if not ledger:
            return Published(rows)
        markers = one("SELECT count(*) FROM tidegate.table_updates")[0]
        return Published(
            rows, markers, *one("SELECT version, high_watermark FROM tidegate.etl_state")
        )


def staging_tables(destination: str) -> list[str]:
    query = (
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'tidegate' AND c.relkind = 'r' AND c.relname LIKE 'stg%'"
    )
    return [name for (name,) in rows(destination, query)]


def wait_until_left(*databases: str, catalogs: bool = True) -> None:
    """Wait until no session of a run is left, as after a kill the servers need a moment."""
    for conninfo in databases:
        until(_has_no_session(conninfo, catalogs), "the sessions of killed runs to end", seconds=60)


def _has_no_session(conninfo: str, catalogs: bool) -> Callable[[], bool]:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'tidegate%%'"
        " AND (%s OR application_name NOT LIKE 'tidegate publish%%')"
    )
    return lambda: scalar(conninfo, query, catalogs) == 0
