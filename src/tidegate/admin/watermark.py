"""Watermarks as users see and move them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg import errors as pg

from tidegate.config.sync import Sync
from tidegate.core.errors import BusyError, TidegateError, UsageError
from tidegate.core.identity import sync_of
from tidegate.core.watermark import CursorType, Watermark
from tidegate.jobs.worker_records import user_name
from tidegate.ledger.watermarks import Move, Watermarks
from tidegate.load.context import Context
from tidegate.load.modes import MODES, LoadMode, Request
from tidegate.load.sources.resolve import resolve_source
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class SyncWatermark:
    """How far one sync has got."""

    context: Context
    sync: Sync

    def get(self) -> Watermark:
        """The watermark as it stands."""
        with self.context.databases.connect(self.sync.target.connection) as connection:
            return self._watermarks().get(
                connection, self.sync.pipeline, str(self.sync.target.relation)
            )

    @property
    def value(self) -> str | None:
        return self.get().value

    def moves(self, limit: int = 20) -> list[Move]:
        """The latest moves, with who and why; none where no ledger exists yet."""
        with self.context.databases.connect(self.sync.target.connection) as connection:
            try:
                return self._watermarks().moves(
                    connection, self.sync.pipeline, str(self.sync.target.relation), limit
                )
            except (pg.UndefinedTable, pg.InvalidSchemaName):
                return []

    def set(self, value: str, *, reason: str) -> Watermark:
        """Move forward to `value` without loading what lies between."""
        return self._move(value, reason, forward=True)

    def rewind(self, value: str | None = None, *, reason: str) -> Watermark:
        """Move back to `value`, or to the start; what follows is loaded again."""
        return self._move(value, reason, forward=False)

    def _move(self, value: str | None, reason: str, *, forward: bool) -> Watermark:
        if not reason.strip():
            raise UsageError("a watermark is not moved without a reason", 'add --reason "…"')
        cursor_type = self._cursor_type(forward=forward)
        ledger = self.context.ledger(self.sync.target.connection)
        ledger.ensure()
        watermarks = self._watermarks()
        table = str(self.sync.target.relation)
        with ledger.connect() as connection, connection.transaction():
            timeout = f"{int(self.context.settings.worker.lock_timeout_seconds * 1000)}ms"
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (timeout,))
            try:
                watermarks.ensure(connection, self.sync.pipeline, table, cursor_type.value)
                watermarks.lock(connection, self.sync.pipeline, table)
            except pg.LockNotAvailable:
                raise BusyError(
                    f"the watermark of {self.sync.name} is held by a load that is being published",
                    "try again when it is done",
                ) from None
            current = watermarks.get(connection, self.sync.pipeline, table)
            if value is not None:
                _check_comparable(self.sync.name, current, cursor_type)
                order, value = watermarks.compare(connection, value, current.value, cursor_type)
                _check_finite(self.sync.name, value)
                if forward:
                    self._refuse_half_loaded(connection, current, value, cursor_type)
                _check_direction(self.sync.name, value, current.value, order, forward=forward)
            elif current.value is None and current.position is None:
                raise UsageError(
                    f"the watermark of {self.sync.name} is at the start already", "nothing to do"
                )
            return watermarks.reset(
                connection,
                current,
                value,
                cursor_type=cursor_type,
                new_generation=not forward,
                moved_by=user_name(),
                reason=reason,
                declaration=_without_server(current),
            )

    def _cursor_type(self, *, forward: bool) -> CursorType:
        if self.context.is_lake(self.sync.source.connection):
            raise UsageError(
                f"the watermark of {self.sync.name} is a snapshot of {self.sync.source}, which is "
                "not moved by hand",
                f"to load everything again: tidegate run {self.sync.name} --full-refresh",
            )
        if self.sync.changes == "cdc":
            raise UsageError(
                f"the watermark of {self.sync.name} is a position in the log of its source, which "
                "is not moved by hand: a slot does not go back",
                f"to load everything again: tidegate run {self.sync.name} --full-refresh",
            )
        with self.context.databases.connect_source(self.sync.source.connection) as connection:
            source = resolve_source(connection, self.sync)
        if source.written is not None:
            return CursorType.XID8
        if source.cursor is None:
            raise UsageError(
                f"sync {self.sync.name} loads everything each time and has no watermark",
                f"to load it again: tidegate run {self.sync.name} --full-refresh",
            )
        refused = self._mode.refused(Request.REWIND, source.key, sync=self.sync.name)
        if refused is not None and not forward:
            raise UsageError(*refused)
        return source.cursor.type

    def _refuse_half_loaded(
        self, connection: Connection, current: Watermark, value: str, cursor_type: CursorType
    ) -> None:
        """Rows of one value that are there in part would be added again from the first."""
        reached = None if current.position is None else current.position[0]
        refused = self._mode.refused(
            Request.SKIP_PART, self.sync.key, sync=self.sync.name, reached=reached
        )
        if reached is None or refused is None:
            return
        if self._watermarks().compare(connection, value, reached, cursor_type)[0] < 0:
            raise UsageError(*refused)

    @property
    def _mode(self) -> LoadMode:
        return MODES[self.sync.mode]

    def _watermarks(self) -> Watermarks:
        return Watermarks(self.context.ledger(self.sync.target.connection))


@dataclass(frozen=True, slots=True)
class ListedWatermark:
    """One line of the list; `problem` says why a watermark could not be read."""

    sync: str
    target: str
    watermark: Watermark | None
    declared: bool = True
    problem: str | None = None


def list_watermarks(
    context: Context, syncs: Mapping[str, Sync], groups: Collection[str] = ()
) -> list[ListedWatermark]:
    """The watermark of every declared sync, and those that undeclared ones left behind."""
    found: list[ListedWatermark] = []
    by_connection: dict[str, list[Sync]] = {}
    for sync in syncs.values():
        if sync.refused is not None and sync.name == sync.group:
            problem = sync.refused.message
            found.append(ListedWatermark(sync.name, str(sync.target), None, problem=problem))
            continue
        by_connection.setdefault(sync.target.connection, []).append(sync)
    for name, its_syncs in by_connection.items():
        try:
            found += _list_connection(context, name, its_syncs, groups)
        except TidegateError as error:
            found += [
                ListedWatermark(sync.name, str(sync.target), None, problem=error.message)
                for sync in its_syncs
            ]
    order = {name: position for position, name in enumerate(syncs)}
    return sorted(found, key=lambda one: (order.get(one.sync, len(order)), one.sync, one.target))


def _list_connection(
    context: Context, name: str, syncs: list[Sync], groups: Collection[str]
) -> list[ListedWatermark]:
    project = context.settings.project.name
    with context.databases.connect(name) as connection:
        states = Watermarks(context.ledger(name)).of_project(connection, project)
    recorded = {(state.pipeline, state.table): state for state in states}
    found: list[ListedWatermark] = []
    for sync in syncs:
        key = (sync.pipeline, str(sync.target.relation))
        watermark = recorded.pop(key, None) or Watermark(*key)
        found.append(ListedWatermark(sync.name, str(sync.target), watermark))
    for (pipeline, table), watermark in recorded.items():
        left = sync_of(project, pipeline)
        head, dot, _ = left.partition(".")
        # A dot means a table of a group, or another project, whose name begins like this one's.
        if not dot or head in groups:
            found.append(ListedWatermark(left, f"{name}:{table}", watermark, declared=False))
    return found


def _without_server(current: Watermark) -> dict[str, Any] | None:
    """Who moves a watermark speaks of the source as it is now, whichever server that is."""
    found = dict(current.declaration or {})
    server = found.pop("server", None)
    return None if server is None else {**found, "server_before": server}


def _check_comparable(name: str, current: Watermark, cursor_type: CursorType) -> None:
    if current.value is None or current.cursor_type in (None, cursor_type.value):
        return
    raise UsageError(
        f"the watermark of {name} ({current.value}) is a {current.cursor_type}, its cursor is now "
        f"a {cursor_type.value}",
        f"begin anew: tidegate watermark rewind {name} --to-start --reason …",
    )


def _check_finite(name: str, value: str) -> None:
    if value.endswith("infinity"):
        raise UsageError(
            f"{value} is no place where {name} could go on from",
            f"to load everything again: tidegate watermark rewind {name} --to-start --reason …",
        )


def _check_direction(
    name: str, value: str, current: str | None, order: int, *, forward: bool
) -> None:
    if forward and order < 0:
        raise UsageError(
            f"{value} lies below the watermark of {name} ({current})",
            f"to load rows again: tidegate watermark rewind {name} '{value}' --reason …",
        )
    if not forward and (current is None or order >= 0):
        raise UsageError(
            f"{value} does not lie below the watermark of {name} ({current or 'at the start'})",
            f"to skip rows: tidegate watermark set {name} '{value}' --reason …",
        )
