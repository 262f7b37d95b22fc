"""Watermarks as users see and move them."""

from __future__ import annotations

import getpass
from dataclasses import dataclass

from tidegate.errors import UsageError
from tidegate.ledger.watermarks import Move, Watermarks
from tidegate.model.cursor import CursorType
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import resolve_source


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
        """The latest moves, with who and why."""
        with self.context.databases.connect(self.sync.target.connection) as connection:
            return self._watermarks().moves(
                connection, self.sync.pipeline, str(self.sync.target.relation), limit
            )

    def set(self, value: str, *, reason: str) -> Watermark:
        """Move forward to `value` without loading what lies between."""
        return self._move(value, reason, forward=True)

    def rewind(self, value: str | None = None, *, reason: str) -> Watermark:
        """Move back to `value`, or to the start; what follows is loaded again."""
        return self._move(value, reason, forward=False)

    def _move(self, value: str | None, reason: str, *, forward: bool) -> Watermark:
        if not reason.strip():
            raise UsageError("a watermark is not moved without a reason", 'add --reason "…"')
        cursor_type = self._cursor_type()
        ledger = self.context.ledger(self.sync.target.connection)
        ledger.ensure()
        watermarks = self._watermarks()
        table = str(self.sync.target.relation)
        with ledger.connect() as connection, connection.transaction():
            watermarks.ensure(connection, self.sync.pipeline, table, cursor_type.value)
            watermarks.lock(connection, self.sync.pipeline, table)
            current = watermarks.get(connection, self.sync.pipeline, table)
            if value is not None:
                order, value = watermarks.compare(connection, value, current.value, cursor_type)
                _check_direction(self.sync.name, value, current.value, order, forward=forward)
            elif current.value is None:
                raise UsageError(
                    f"the watermark of {self.sync.name} is at the start already", "nothing to do"
                )
            return watermarks.reset(
                connection,
                current,
                value,
                cursor_type=cursor_type,
                new_generation=not forward,
                moved_by=getpass.getuser(),
                reason=reason,
            )

    def _cursor_type(self) -> CursorType:
        with self.context.databases.connect(self.sync.source.connection) as connection:
            return resolve_source(connection, self.sync).cursor.type

    def _watermarks(self) -> Watermarks:
        return Watermarks(self.context.ledger(self.sync.target.connection))


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
