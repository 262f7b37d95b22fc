"""Dump and load the control database's open work."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import errors as pg
from psycopg import sql

from tidegate.admin.state_file import (
    StateHeader,
    check_state,
    put_aside,
    read_rows,
    write_state,
    write_whole,
)
from tidegate.core.errors import StateDamaged, TidegateError, UsageError
from tidegate.core.failpoints import reach
from tidegate.core.log import log
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.drain import refuse_draining
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection, begin_read_only, first_line, translate


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """One table: which of its rows are kept, `t`, and which columns are not.

    Those that a table has beyond are kept too, so that a new one is not forgotten here.
    """

    name: str
    rows: LiteralString = "t.project = %(project)s"
    leave_out: frozenset[str] = frozenset()
    instead: dict[str, LiteralString] = field(default_factory=dict)
    """what is written for a column in place of its value"""


_UNFINISHED: LiteralString = (
    "EXISTS (SELECT FROM {schema}.job_queue q JOIN {schema}.jobs j USING (job_id)"
    " WHERE q.job_id = t.job_id AND q.project = %(project)s AND j.cancel_requested_at IS NULL)"
)

# Whoever held a job does not hold it where the file is loaded: it is pending there. A job that is
# being cancelled is left out, which ends it.
STATE_TABLES = (
    DumpedTable(
        "jobs",
        _UNFINISHED,
        frozenset(
            {
                "status",
                "attempt_id",
                "result",
                "progress",
                "finished_at",
                "cancel_requested_at",
                "cancel_requested_by",
            }
        ),
        # The steps that a job of maintenance has done stay behind, so it begins anew.
        {"plan": "CASE WHEN t.kind <> 'maintenance' THEN t.plan END"},
    ),
    DumpedTable(
        "job_queue",
        _UNFINISHED,
        frozenset({"claimed_at", "claimed_by", "attempt_id", "fence", "lease_until"}),
        # A claim puts the job off, which is over where nobody holds it.
        {"visible_at": "coalesce(t.claimed_at, t.visible_at)"},
    ),
    # A need that is met already is none; one that cannot be met any more must stay one.
    DumpedTable(
        "job_needs",
        _UNFINISHED + " AND NOT EXISTS (SELECT FROM {schema}.jobs done"
        " WHERE done.job_id = t.needs AND done.status = 'done')",
    ),
    DumpedTable("schedules"),
    DumpedTable("schedule_ticks"),
    DumpedTable("task_states"),
    DumpedTable("task_markers"),
)
REPLACED = frozenset({"schedules", "schedule_ticks", "task_states", "task_markers"})
"""where the file's row wins over one that is there already"""


_ROWS_AT_ONCE = 1_000
Lines = Callable[[], Iterable[bytes]]
"""the lines of one file, from its beginning each time"""


@dataclass(frozen=True, slots=True)
class LoadedState:
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

    plane: ControlDatabase
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
            self.plane.statement("admin/state", "has_jobs_of"), {"project": self.project}
        ).fetchone()
        return row is None or not row[0]

    def load(
        self, connection: Connection, lines: Lines, *, actor: str, take_over: bool = False
    ) -> LoadedState:
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
    ) -> LoadedState:
        place = f"{self.plane.schema}/{self.project}"
        connection.execute(self.plane.statement("admin/state", "lock_loading"), {"place": place})
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
        connection.execute(self.plane.statement("admin/state", "lock_loaded"), given)
        detail = f"state of {header.created_at:%Y-%m-%d %H:%M:%S} UTC"
        connection.execute(
            self.plane.statement("admin/state", "audit_loaded"),
            given | {"actor": actor, "detail": detail},
        )
        if header.fence_token > 0:
            connection.execute(
                self.plane.statement("jobs/fence_tokens", "reseed_tokens"),
                {"sequence": self.plane.sequence, "token": header.fence_token},
            )
        connection.execute(
            self.plane.statement("jobs/jobs", "announce_projects"),
            {"channel": self.plane.channel("jobs"), "projects": [self.project]},
        )
        reach("state.loaded")
        return LoadedState(header, rows, taken)

    def _take_identity(self, connection: Connection, header: StateHeader) -> bool:
        if self.plane.identity(connection) == header.control_id:
            return False
        taken = connection.execute(
            self.plane.statement("admin/state", "take_identity"),
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
            self.plane.statement("jobs/fence_tokens", "last_token"),
            {"sequence": self.plane.sequence},
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

    def _rows(self, connection: Connection, table: DumpedTable, columns: _Columns) -> Iterator[str]:
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
            self.plane.statement("admin/state", "list_columns"),
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


@dataclass(frozen=True, slots=True)
class Dumped:
    """A state file that was written."""

    path: Path
    header: StateHeader
    rows: dict[str, int]
    size_bytes: int


def check_file(path: Path) -> StateHeader:
    """Whose state a file holds; raises unless it is whole."""
    try:
        with path.open("rb") as file:
            return check_state(file)
    except StateDamaged as error:
        raise StateDamaged(f"{path} {error.message}", error.hint) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or type(error).__name__}",
            "name a file that `tidegate state dump` has written",
        ) from None


def dump_state(context: Context, path: Path, *, aside: bool = False) -> Dumped:
    """Write the state into a file, in place of an older state of the same project.

    Anything else that is there stays: under another name with `aside`, else it is refused.
    """
    context.control_id()
    _make_room(context, path, aside)
    state = ControlState(context.plane, context.settings.project.name)
    try:
        with context.plane.connect() as control:
            size = write_whole(path, state.dump(control))
    except psycopg.Error as error:
        raise translate(error, "dumping the state") from None
    except OSError as error:
        raise _not_written(path, error) from None
    header, rows = _describe(path)
    return Dumped(path, header, rows, size)


def load_state(context: Context, path: Path, *, actor: str, take_over: bool = False) -> LoadedState:
    """Load a file into a control plane that knows no job of its project."""
    check_file(path)
    context.control_id()
    state = ControlState(context.plane, context.settings.project.name)
    with path.open("rb") as file, context.plane.connect() as control:

        def lines() -> Iterable[bytes]:
            # The file that was opened, even if another is put in its place meanwhile.
            file.seek(0)
            return file

        try:
            return state.load(control, lines, actor=actor, take_over=take_over)
        except StateDamaged as error:
            raise StateDamaged(f"{path} {error.message}", error.hint) from None


class StateKeeper:
    """The state file of a process: `load_on_start()` before it works, `dump()` when it leaves."""

    def __init__(self, context: Context, path: Path) -> None:
        self.path = path
        self._context = context
        self._loaded = False
        self._dumping = threading.Lock()

    def load_on_start(self) -> LoadedState | None:
        """Load the file where the control plane knows no job of this project; None otherwise.

        A file that is not whole raises, and then nothing is written over it later either.
        """
        context = self._context
        context.control_id()
        state = ControlState(context.plane, context.settings.project.name)
        with context.plane.connect() as control:
            empty = state.is_empty(control)
        loaded = None
        if empty and self.path.exists():
            loaded = load_state(context, self.path, actor="scheduler")
            log.info("state_loaded", path=str(self.path), jobs=loaded.jobs)
            if loaded.header.control_id != context.control_id():
                log.warning(
                    "state_of_another_control_plane",
                    control_id=str(loaded.header.control_id),
                    hint="its tables are handed over with: tidegate run NAME --take-over",
                )
        self._loaded = True
        return loaded

    def dump(self) -> Dumped | None:
        """Write the file; what goes wrong is logged, since whoever leaves must leave.

        Any thread may call it, at the same time too. None when nothing was written.
        """
        if not self._loaded:
            return None
        with self._dumping:
            try:
                dumped = dump_state(self._context, self.path, aside=True)
            except (TidegateError, psycopg.Error, OSError) as error:
                reason = error.message if isinstance(error, TidegateError) else first_line(error)
                log.warning("state_not_dumped", path=str(self.path), error=reason)
                return None
        log.info("state_dumped", path=str(self.path), jobs=dumped.rows.get("jobs", 0))
        return dumped


def _make_room(context: Context, path: Path, aside: bool) -> None:
    """Nothing is lost that a dump would be put in the place of."""
    if not path.exists():
        return
    project = context.settings.project.name
    try:
        found = check_file(path)
        if found.project == project:
            return
        refused = UsageError(
            f"{path} holds the state of project {found.project}", "write into another file"
        )
    except UsageError as error:
        refused = error
    if not aside:
        raise UsageError(
            f"{refused.message}; nothing was written over it", "write into another file"
        )
    try:
        kept = put_aside(path, "kept")
    except OSError as error:
        raise _not_written(path, error) from None
    log.warning("state_file_put_aside", path=str(path), kept=str(kept), reason=refused.message)


def _describe(path: Path) -> tuple[StateHeader, dict[str, int]]:
    """What was written, read again from the disk."""
    from tidegate.admin.state_file import read_rows

    counts: dict[str, int] = {}
    with path.open("rb") as file:
        header = check_state(file)
        file.seek(0)
        for section, _ in read_rows(file):
            counts[section] = counts.get(section, 0) + 1
    return header, counts


def _not_written(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror or type(error).__name__}",
        "name a file in a folder that can be written to",
    )
