"""The state of one project in a control plane, written out and read in again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from tidegate.control.draining import refuse_draining
from tidegate.control.plane import ControlPlane
from tidegate.control.state_tables import REPLACED, STATE_TABLES, StateTable
from tidegate.errors import UsageError
from tidegate.failpoints import reach
from tidegate.model.state_file import (
    StateHeader,
    check_state,
    read_rows,
    write_state,
)
from tidegate.postgres.connect import Connection, begin_read_only, first_line

_ROWS_AT_ONCE = 1_000
Lines = Callable[[], Iterable[bytes]]
"""the lines of one file, from its beginning each time"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file brought in."""

    header: StateHeader
    rows: dict[str, int] = field(default_factory=dict)
    identity_taken: bool = False

    @property
    def jobs(self) -> int:
        return self.rows.get("jobs", 0)


@dataclass(frozen=True, slots=True)
class _Columns:
    all: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ControlState:
    """What one project still has to do, in one control plane."""

    plane: ControlPlane
    project: str

    def dump(self, connection: Connection) -> Iterator[bytes]:
        """The pieces of a state file, all of one snapshot; the session is in it meanwhile."""
        begin_read_only(connection)
        try:
            yield from write_state(self._header(connection), self._sections(connection))
        finally:
            if not connection.closed:
                connection.rollback()

    def is_empty(self, connection: Connection) -> bool:
        """Whether the project has no job here, not even one that has ended."""
        row = connection.execute(
            self.plane.statement("state", "has_jobs_of"), {"project": self.project}
        ).fetchone()
        return row is None or not row[0]

    def load(
        self, connection: Connection, lines: Lines, *, actor: str, take_over: bool = False
    ) -> Loaded:
        """Bring a file in, all of it or nothing; jobs keep their ids.

        With `take_over` the control plane goes on as the one that wrote the file, which must be
        stopped for good: what that one has loaded is this one's then.
        """
        header = check_state(lines())
        if header.project != self.project:
            raise UsageError(
                f"the file holds the state of project {header.project}, this is {self.project}",
                "load it into that project; nothing was changed",
            )
        try:
            with connection.transaction():
                return self._load(connection, header, lines, actor, take_over)
        except (pg.IntegrityError, pg.DataError) as error:
            raise UsageError(
                f"the state of {self.project} cannot be loaded beside what is in the control "
                f"database: {first_line(error)}",
                "end what is in its way, or load it into an empty control database; nothing was "
                "changed",
            ) from None

    def _load(
        self,
        connection: Connection,
        header: StateHeader,
        lines: Lines,
        actor: str,
        take_over: bool,
    ) -> Loaded:
        place = f"{self.plane.schema}/{self.project}"
        connection.execute(self.plane.statement("state", "lock_loading"), {"place": place})
        refuse_draining(self.plane, connection)
        if not self.is_empty(connection):
            raise UsageError(
                f"project {self.project} has jobs in this control database; nothing was changed",
                "a state file is loaded into a control database that knows no job of its project",
            )
        taken = take_over and self._take_identity(connection, header)
        rows = {
            section: self._insert(connection, section, (row for _, row in group))
            for section, group in groupby(read_rows(lines()), key=lambda one: one[0])
        }
        given = {"project": self.project}
        connection.execute(self.plane.statement("state", "lock_loaded"), given)
        detail = f"state of {header.created_at:%Y-%m-%d %H:%M:%S} UTC"
        connection.execute(
            self.plane.statement("state", "audit_loaded"),
            given | {"actor": actor, "detail": detail},
        )
        if header.fence_token > 0:
            connection.execute(
                self.plane.statement("fence_tokens", "reseed_tokens"),
                {"sequence": self.plane.sequence, "token": header.fence_token},
            )
        connection.execute(
            self.plane.statement("jobs", "announce_projects"),
            {"channel": self.plane.channel("jobs"), "projects": [self.project]},
        )
        reach("state.loaded")
        return Loaded(header, rows, taken)

    def _take_identity(self, connection: Connection, header: StateHeader) -> bool:
        if self.plane.identity(connection) == header.control_id:
            return False
        taken = connection.execute(
            self.plane.statement("state", "take_identity"),
            {"control_id": header.control_id, "sequence": self.plane.sequence},
        )
        if taken.rowcount != 1:
            raise UsageError(
                "this control database has worked already, so it stays who it is; nothing was "
                "changed",
                "load without --take-over, and hand tables over one by one with: tidegate run "
                "NAME --take-over",
            )
        return True

    def _header(self, connection: Connection) -> StateHeader:
        token = connection.execute(
            self.plane.statement("fence_tokens", "last_token"), {"sequence": self.plane.sequence}
        ).fetchone()
        clock = connection.execute("SELECT now()").fetchone()
        assert token is not None
        assert clock is not None
        return StateHeader(
            self.project, self.plane.identity(connection), clock[0], int(token[0] or 0)
        )

    def _sections(self, connection: Connection) -> Iterator[tuple[str, Iterator[str]]]:
        for table in STATE_TABLES:
            columns = self._columns(connection, table.name)
            if columns is not None:
                yield table.name, self._rows(connection, table, columns)

    def _rows(self, connection: Connection, table: StateTable, columns: _Columns) -> Iterator[str]:
        """Each row as Postgres writes it, so that no value passes through another type."""
        schema = sql.SQL(sql.Identifier(self.plane.schema).as_string(None).replace("%", "%%"))
        kept = [one for one in columns.all if one not in table.leave_out]
        values = [
            sql.SQL("{} AS {}").format(
                sql.SQL(table.instead[one]) if one in table.instead else sql.Identifier("t", one),
                sql.Identifier(one),
            )
            for one in kept
        ]
        query = sql.SQL(
            "SELECT row_to_json(kept)::text FROM {schema}.{table} t, LATERAL (SELECT {values}) kept"
            " WHERE {rows} ORDER BY {key}"
        ).format(
            schema=schema,
            table=sql.Identifier(table.name),
            values=sql.SQL(", ").join(values),
            rows=sql.SQL(table.rows).format(schema=schema),
            key=sql.SQL(", ").join(sql.Identifier("t", one) for one in columns.key),
        )
        with connection.cursor() as cursor:
            for (row,) in cursor.stream(query, {"project": self.project}):
                yield row

    def _insert(self, connection: Connection, section: str, rows: Iterator[str]) -> int:
        columns = self._columns(connection, section)
        if columns is None or section not in {table.name for table in STATE_TABLES}:
            raise _unknown(section)
        count = 0
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            given: dict[str, Any] = json.loads(chunk[0])
            strange = given.keys() - set(columns.all)
            if strange:
                raise _unknown(f"{section}.{min(strange)}")
            statement = self._inserting(section, [one for one in columns.all if one in given])
            if section in REPLACED:
                statement += _replacing(columns.key, given)
            connection.execute(statement, {"rows": f"[{','.join(chunk)}]"})
            count += len(chunk)
        return count

    def _inserting(self, table: str, names: list[str]) -> sql.Composed:
        return sql.SQL(
            "INSERT INTO {table} ({names}) SELECT {names}"
            " FROM json_populate_recordset(NULL::{table}, %(rows)s::json)"
        ).format(
            table=sql.SQL(
                sql.Identifier(self.plane.schema, table).as_string(None).replace("%", "%%")
            ),
            names=sql.SQL(", ").join(sql.Identifier(one) for one in names),
        )

    def _columns(self, connection: Connection, table: str) -> _Columns | None:
        found = connection.execute(
            self.plane.statement("state", "list_columns"),
            {"schema": self.plane.schema, "table": table},
        ).fetchall()
        if not found:
            return None
        key = tuple(name for name, is_key in found if is_key)
        return _Columns(tuple(name for name, _ in found), key)


def _replacing(key: tuple[str, ...], given: dict[str, Any]) -> sql.Composed:
    others = [one for one in given if one not in key]
    sets = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(one)) for one in others]
    return sql.SQL(" ON CONFLICT ({key}) DO {action}").format(
        key=sql.SQL(", ").join(sql.Identifier(one) for one in key),
        action=sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sets) if sets else sql.SQL("NOTHING"),
    )


def _unknown(what: str) -> UsageError:
    return UsageError(
        f"the file holds {what}, which this Tidegate does not know; nothing was changed",
        "use the Tidegate that wrote it",
    )
