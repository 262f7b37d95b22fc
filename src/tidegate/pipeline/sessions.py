"""The database sessions of one reading command: opened once each, closed together."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType

from tidegate.control.observations import Observations
from tidegate.control.plane import ControlPlane
from tidegate.errors import TidegateError, UsageError
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.postgres.databases import CONTROL


@dataclass(slots=True)
class Sessions:
    """One session per role and connection; a database that did not answer is not asked again."""

    context: Context
    _open: dict[tuple[str, str], Connection | TidegateError] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _has_plane: bool | None = None

    def source(self, name: str) -> Connection:
        """A session of its own for reading, since a snapshot is held in it."""
        if self.context.is_lake(name):
            raise UsageError(
                f'connection "{name}" is a lake, which this command cannot read as a source; nor '
                "can a group have a lake as its source",
                "declare each of its tables as a sync of its own; run, plan and status can read it",
            )
        return self._get("source", name)

    def target(self, name: str) -> Connection:
        return self._get("target", name)

    def control(self) -> Connection | None:
        """The control database; None when nothing ever ran, so that nothing is made there."""
        connection = self._get("control", CONTROL)
        if self._has_plane is None:
            self._has_plane = self.context.plane.version(connection) > 0
        return connection if self._has_plane else None

    def control_database(self) -> Connection:
        """The control database, whether or not it holds a control plane yet."""
        return self._get("control", CONTROL)

    def memory(self, pipeline: str) -> ReadMemory:
        return ReadMemory(self.context.plane, self.control(), pipeline)

    def _get(self, role: str, name: str) -> Connection:
        known = self._open.get((role, name))
        if known is None:
            try:
                known = self._stack.enter_context(
                    self.context.databases.connect_source(name, "tidegate inspect")
                    if role == "source"
                    else self.context.databases.connect(name, "tidegate inspect")
                )
            except TidegateError as error:
                known = error
            self._open[role, name] = known
        if isinstance(known, TidegateError):
            raise known
        return known

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """What earlier runs observed of an integer cursor, without adding to it."""

    plane: ControlPlane
    connection: Connection | None
    pipeline: str

    def record(self, observed_at: datetime, value: str) -> None:
        """A command that only looks leaves no trace."""

    def latest_before(self, moment: datetime) -> str | None:
        if self.connection is None:
            return None
        return Observations(self.plane, self.connection, self.pipeline).latest_before(moment)
