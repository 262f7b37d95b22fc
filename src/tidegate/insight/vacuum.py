"""The session that keeps vacuum from cleaning up a database, which makes its queue slow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.postgres.connect import Connection

GUARD_SECONDS = 60.0

# A session holds vacuum back by its snapshot or by an id of its own, whichever is older.
_HOLDERS = """
SELECT what, since, transactions
FROM (
    SELECT 'process ' || pid || ' of ' || coalesce(usename, '?')
           || coalesce(' (' || nullif(application_name, '') || ')', '')
           || ', ' || coalesce(state, backend_type) AS what,
           coalesce(xact_start, backend_start) AS since,
           greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT 'prepared transaction ' || gid || ' of ' || owner, prepared, age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
) holders
WHERE since < clock_timestamp() - %s * interval '1 second'
ORDER BY transactions DESC, since
LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class VacuumHolder:
    """Who, since when, and how many transactions' dead rows have to stay."""

    what: str
    since: datetime
    transactions: int


def find_vacuum_holder(
    connection: Connection, guard_seconds: float = GUARD_SECONDS
) -> VacuumHolder | None:
    """The one that has held back vacuum in this database longest, if for longer than the guard."""
    row = connection.execute(_HOLDERS, (guard_seconds,)).fetchone()
    return VacuumHolder(*row) if row else None
