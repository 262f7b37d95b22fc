"""Highest integer cursors seen, and when: what the horizon of an integer cursor rests on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class Observations:
    """Remembers what was seen, for one pipeline, on a control session."""

    plane: ControlPlane
    connection: Connection
    pipeline: str

    def record(self, observed_at: datetime, value: str) -> None:
        self.connection.execute(
            self.plane.statement("cursor_observations", "record_observation"),
            {"pipeline": self.pipeline, "observed_at": observed_at, "value": value},
        )
        self.connection.execute(
            self.plane.statement("cursor_observations", "prune_observations"),
            {"pipeline": self.pipeline},
        )

    def latest_before(self, moment: datetime) -> str | None:
        """The highest value known to have been visible before `moment`."""
        row = self.connection.execute(
            self.plane.statement("cursor_observations", "latest_before"),
            {"pipeline": self.pipeline, "moment": moment},
        ).fetchone()
        return row[0] if row else None

    def forget(self) -> None:
        self.connection.execute(
            self.plane.statement("cursor_observations", "forget_observations"),
            {"pipeline": self.pipeline},
        )
