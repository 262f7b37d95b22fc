"""Where an adopted sync goes on from: below everything that may still be missing."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import SourceError, UsageError
from tidegate.insight.filled_target import Extent
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.adoption import StartingPoint
from tidegate.model.cursor import CursorType
from tidegate.model.horizon import Horizon
from tidegate.postgres.connect import Connection
from tidegate.settings import parse_duration
from tidegate.sources.postgres import PostgresSource


@dataclass(frozen=True, slots=True)
class Start:
    """A watermark to begin with, why it is that one, and what its owner should know."""

    value: str
    reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Starting:
    """Finds the watermark; values are compared in the target's database, as loads compare them."""

    name: str
    connection: Connection
    watermarks: Watermarks
    source: PostgresSource
    horizon: Horizon
    extent: Extent | None
    """None where the target's rows do not carry the cursor in its own type"""

    def choose(self, point: StartingPoint) -> Start:
        """The watermark that a person's words come to."""
        if self.horizon.high is None:
            raise SourceError(
                f"{self.source.table.relation} is held back by "
                f"{self.horizon.held_by.what if self.horizon.held_by else 'its settle time'}, and "
                "which rows are still to come is not known",
                "try again when that has ended",
            )
        if point.at is not None:
            return self._at(point.at, self.horizon.high)
        return self._below_highest(point.back, self.horizon.high)

    def _at(self, given: str, high: str) -> Start:
        kind = self.source.ordered_by.type
        order, value = self.watermarks.compare(self.connection, given, high, kind)
        self._check_finite(value)
        if order > 0:
            held = f", held by {self.horizon.held_by.what}" if self.horizon.held_by else ""
            raise UsageError(
                f"{value} lies above the horizon of {self.source.table.relation} ({high}{held}): "
                "rows below it may still come, and would be skipped",
                f"give a value up to {high}",
            )
        return Start(value, f"adopted at {value}")

    def _below_highest(self, back: str | None, high: str) -> Start:
        kind = self.source.ordered_by.type
        cursor = self.source.ordered_by.name
        if self.extent is None:
            raise UsageError(
                f"the target has no column {cursor} of type {kind.value}, so its highest value "
                "says nothing",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            )
        highest, below = self.extent.highest, self.extent.below
        if highest is None:
            raise UsageError(
                f"no row of the target has a value in {cursor}, so there is no highest one",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            )
        self._check_finite(highest)
        # The former loader may have stopped inside a run of equal values: these are read again.
        value = below if below is not None else self._minus(highest, _unit(kind))
        if back is not None:
            earlier = self._minus(highest, _amount(back, kind))
            if self.watermarks.compare(self.connection, earlier, value, kind)[0] < 0:
                value = earlier
        reason = f"adopted from the target's highest {cursor}, {highest}"
        if self.watermarks.compare(self.connection, value, high, kind)[0] > 0:
            warning = (
                f"{value} lies above the source's horizon, so it goes on from there, {high}: rows "
                "below it may still come"
            )
            return Start(high, reason, (warning,))
        return Start(value, reason)

    def _minus(self, value: str, amount: str) -> str:
        kind = self.source.ordered_by.type
        if kind is CursorType.XID8:
            return str(max(0, int(value) - int(amount)))
        operand = "{}::numeric" if kind.is_integer else "{}::interval"
        try:
            row = self.connection.execute(
                sql.SQL("SELECT ((({})::{}) - " + operand + ")::{}::text").format(
                    sql.Literal(value),
                    sql.SQL(kind.value),
                    sql.Literal(amount),
                    sql.SQL(kind.value),
                )
            ).fetchone()
        except pg.DataError:
            raise UsageError(
                f"no {kind.value} lies that far below {value}",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            ) from None
        assert row is not None
        return str(row[0])

    def _check_finite(self, value: str) -> None:
        if value.endswith("infinity"):
            raise UsageError(
                f"{value} is no place where {self.name} could go on from",
                f"say where to go on: tidegate adopt {self.name} --at VALUE",
            )


def _unit(kind: CursorType) -> str:
    if kind.is_number:
        return "1"
    return "1 day" if kind is CursorType.DATE else "1 microsecond"


def _amount(back: str, kind: CursorType) -> str:
    if kind.is_number:
        if not back.strip().isdecimal():
            raise UsageError(
                f"--back {back!r} for an integer cursor", "write a number of values: --back 1000"
            )
        return back.strip()
    try:
        return f"{parse_duration(back):.6f} seconds"
    except ValueError as error:
        raise UsageError(f"--back {back!r} is not {error}", 'for example --back "1 hour"') from None
