"""When something is due: cron's five fields in a time zone, across changes of the clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_LOOK_BACK_AT_MOST = 10_000
GRACE = timedelta(minutes=1)


class CatchUp(StrEnum):
    """What becomes of ticks that nobody was there to see."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One cron expression; ValueError when it is none.

    As Vixie's cron has it: a time that the clock skips in spring is due at the next moment there
    is, one that it shows twice in autumn is due once, and hourly ticks come every hour of the day.

    >>> schedule = Schedule("30 2 * * *", "Europe/Berlin")
    >>> schedule.next_after(datetime(2026, 3, 29, 0, 0, tzinfo=UTC)).isoformat()
    '2026-03-29T01:00:00+00:00'
    """

    cron: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.cron.split()) != 5:
            raise ValueError('five fields such as "*/5 * * * *"')
        try:
            next(self._from(datetime(2026, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as error:
            raise ValueError(f'five fields such as "*/5 * * * *": {error or "never due"}') from None

    def next_after(self, moment: datetime) -> datetime:
        """The first tick after a moment."""
        return next(self._from(moment))

    def between(
        self, after: datetime, until: datetime, limit: int = _LOOK_BACK_AT_MOST
    ) -> list[datetime]:
        """The ticks in (after, until], the oldest first; no more than `limit`."""
        found = []
        for tick in islice(self._from(after), limit):
            if tick > until:
                break
            found.append(tick)
        return found

    def due(
        self, after: datetime, now: datetime, catch_up: CatchUp, grace: timedelta = GRACE
    ) -> list[datetime]:
        """The ticks to be queued, when everything up to `after` was dealt with.

        A tick that is older than `grace` was missed; only a schedule that catches up has it queued.
        """
        ticks = self.between(after, now)
        if catch_up is CatchUp.ALL or not ticks:
            return ticks
        while len(ticks) == _LOOK_BACK_AT_MOST:
            ticks = self.between(ticks[-1], now) or ticks[-1:]
        last = ticks[-1]
        return [last] if catch_up is CatchUp.LAST or now - last <= grace else []

    def _from(self, moment: datetime) -> Iterator[datetime]:
        local = moment.astimezone(ZoneInfo(self.timezone))
        for tick in CronSim(self.cron, local):
            yield tick.astimezone(UTC)
