"""What the target must hold, and what the ledger and the queue must say; plain SQL throughout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

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


def scalar(conninfo: str, query: str, *parameters: object) -> object:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query, parameters).fetchone()  # type: ignore[arg-type]
        return row[0] if row else None


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


def assert_idle(control: str) -> None:
    """No lock, nothing queued, no job left in the middle, no job finished by two attempts."""
    with psycopg.connect(control, autocommit=True) as connection:

        def rows(query: str) -> list[tuple[object, ...]]:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

        assert rows("SELECT * FROM tidegate_control.table_locks") == []
        assert rows("SELECT * FROM tidegate_control.job_queue") == []
        assert (
            rows(
                "SELECT job_id, status FROM tidegate_control.jobs"
                " WHERE status NOT IN ('done', 'failed', 'cancelled')"
            )
            == []
        )
        assert (
            rows(
                "SELECT job_id FROM tidegate_control.job_attempts"
                " WHERE outcome IN ('done', 'failed') GROUP BY job_id HAVING count(*) > 1"
            )
            == []
        )
        assert (
            rows(
                "SELECT a.job_id FROM tidegate_control.job_attempts a"
                " JOIN tidegate_control.job_attempts b ON a.job_id = b.job_id"
                " AND a.attempt_id <> b.attempt_id AND a.started_at <= b.started_at"
                " AND coalesce(a.finished_at, 'infinity') > b.started_at"
            )
            == []
        ), "two attempts at one job overlapped"


def staging_tables(destination: str) -> list[str]:
    with psycopg.connect(destination, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'tidegate' AND c.relkind = 'r' AND c.relname LIKE 'stg%'"
        )
        return [name for (name,) in rows]


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
