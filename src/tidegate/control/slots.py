"""The slots of a project in its sources, and how far each of their readers has got."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.control.plane import ControlPlane
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class KnownSlot:
    """A slot that this control plane has made, or was about to make."""

    slot: str
    connection: str
    system: str
    database: str
    made_at: datetime


@dataclass(frozen=True, slots=True)
class SlotReader:
    """A pipeline that reads a slot; `read_at` is when it last saw all that there was."""

    slot: str
    pipeline: str
    publication: str
    lsn: str
    read_at: datetime | None


@dataclass(frozen=True, slots=True)
class Slots:
    """Reads and writes what the control database knows of slots."""

    plane: ControlPlane

    def register(
        self,
        connection: Connection,
        *,
        slot: str,
        project: str,
        source: str,
        system: str,
        database: str,
    ) -> None:
        """Know a slot, before it is made."""
        connection.execute(
            self.plane.statement("slots", "register_slot"),
            {
                "slot": slot,
                "project": project,
                "connection": source,
                "system": system,
                "database": database,
            },
        )

    def join(self, connection: Connection, reader: SlotReader) -> None:
        """Hold the slot where it is for a new reader; one that is known stays as it is."""
        connection.execute(
            self.plane.statement("slots", "register_reader"), self._parameters(reader)
        )

    def move(self, connection: Connection, reader: SlotReader) -> None:
        """A reader has published up to its position."""
        connection.execute(self.plane.statement("slots", "move_reader"), self._parameters(reader))

    def reset(self, connection: Connection, slot: str, lsn: str) -> None:
        """The slot begins anew at `lsn`, for all of its readers."""
        connection.execute(
            self.plane.statement("slots", "reset_readers"), {"slot": slot, "lsn": lsn}
        )

    def least(self, connection: Connection, slot: str) -> str | None:
        """What all readers of a slot have behind them."""
        row = connection.execute(
            self.plane.statement("slots", "least_lsn"), {"slot": slot}
        ).fetchone()
        return row[0] if row else None

    def of_project(self, connection: Connection, project: str) -> list[KnownSlot]:
        rows = connection.execute(self.plane.statement("slots", "list_slots"), {"project": project})
        return [KnownSlot(*row) for row in rows]

    def readers(self, connection: Connection, project: str) -> list[SlotReader]:
        """Who reads the slots of a project, those that hold them back first."""
        rows = connection.execute(
            self.plane.statement("slots", "list_readers"), {"project": project}
        )
        return [SlotReader(*row) for row in rows]

    def read_by(self, connection: Connection, pipeline: str) -> list[SlotReader]:
        """What a pipeline reads."""
        rows = connection.execute(
            self.plane.statement("slots", "readers_of"), {"pipeline": pipeline}
        )
        return [SlotReader(*row) for row in rows]

    def leave(self, connection: Connection, slot: str, pipeline: str) -> None:
        connection.execute(
            self.plane.statement("slots", "forget_reader"), {"slot": slot, "pipeline": pipeline}
        )

    def forget(self, connection: Connection, slot: str) -> bool:
        """Forget a slot that nobody reads; False when somebody does."""
        done = connection.execute(self.plane.statement("slots", "forget_slot"), {"slot": slot})
        return done.rowcount == 1

    def _parameters(self, reader: SlotReader) -> dict[str, object]:
        return {
            "slot": reader.slot,
            "pipeline": reader.pipeline,
            "publication": reader.publication,
            "lsn": reader.lsn,
            "read_at": reader.read_at,
        }
