"""Generate events by a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import psycopg

from tidegate.events.intake import copy_in
from tidegate.events.model import MISSING, EventModel, FieldType
from tidegate.events.project_events import find_events
from tidegate.events.samples import (
    BROKEN_KINDS,
    PATHS,
    Samples,
    SampleStory,
    Tree,
    broken_text,
    is_story,
    odd_text,
    other_text,
    put,
    usual_text,
)
from tidegate.events.tables import ensure_tables
from tidegate.load.context import Context
from tidegate.postgres.connection import translate
from tidegate.postgres.databases import label

_ODD_SHARE = 0.001
_REMEMBERED = 500
_LATE_DAYS = 300
_FEW = 100


@dataclass(frozen=True, slots=True)
class Generation:
    """What to make up; the same one gives the same events."""

    count: int
    seed: int
    until: datetime
    """the newest moment"""
    days: int = 60
    duplicates: float = 0.02
    malformed: float = 0.01
    late: float = 0.0
    """the share that is up to 300 days older than all others"""


@dataclass(slots=True)
class Totals:
    """What the events come to, counted from the values before they were written."""

    events: int = 0
    facts: int = 0
    duplicates: int = 0
    malformed: Counter[str] = field(default_factory=Counter)
    months: Counter[str] = field(default_factory=Counter)
    sums: dict[str, Decimal] = field(default_factory=dict)
    """of the facts' numeric and bigint columns"""
    net_revenue: dict[str, Decimal] = field(default_factory=dict)
    """purchases without refunds, by currency; of the template's events"""
    keys: dict[str, Counter[Any]] = field(default_factory=dict)
    """dimensions: how many facts each of their rows has"""

    def document(self) -> dict[str, Any]:
        """The totals as JSON; rows are listed only for dimensions that have few."""
        return {
            "events": self.events,
            "facts": self.facts,
            "duplicates": self.duplicates,
            "failed": self.malformed.total(),
            "malformed": dict(sorted(self.malformed.items())),
            "months": dict(sorted(self.months.items())),
            "sums": {name: format(one, "f") for name, one in self.sums.items()},
            "net_revenue": {
                name: format(one, "f") for name, one in sorted(self.net_revenue.items())
            },
            "dimensions": {name: len(rows) for name, rows in self.keys.items()},
            "facts_of": {
                name: {str(key[0]): count for key, count in sorted(rows.items())}
                for name, rows in self.keys.items()
                if len(rows) <= _FEW and all(len(key) == 1 for key in rows)
            },
        }


class EventGenerator:
    """Makes events for a model one after the other, and counts what they come to."""

    def __init__(self, model: EventModel, plan: Generation) -> None:
        self.totals = Totals(keys={one.name: Counter() for one in model.dimensions})
        self._model = model
        self._plan = plan
        # Another day or model gives other events, which then need other ids.
        self._rng = Random(repr((plan, model.fields)))
        self._since = plan.until - timedelta(days=plan.days)
        self._samples = Samples(model, self._rng, self._since, plan.until)
        self._story: Iterator[Tree] | None = None
        if is_story(model):
            self._story = SampleStory(self._rng, plan.count, self._since, plan.until).events()
        self._late: set[datetime] = set()
        self._unknown = [one for one in model.fields if str(one.path) not in PATHS]

    def events(self) -> Iterator[tuple[UUID, str]]:
        """The ids and bodies, in the order in which they arrive."""
        rng, plan = self._rng, self._plan
        recent: list[Tree] = []
        for number in range(plan.count):
            event_id = UUID(int=rng.getrandbits(128), version=4)
            self.totals.events += 1
            chance = rng.random()
            if chance < plan.malformed:
                kind = BROKEN_KINDS[self.totals.malformed.total() % len(BROKEN_KINDS)]
                self.totals.malformed[kind] += 1
                yield event_id, broken_text(self._make(number), self._model, kind)
            elif chance < plan.malformed + plan.duplicates and recent:
                self.totals.duplicates += 1
                yield event_id, other_text(rng.choice(recent), rng)
            else:
                tree = self._make(number)
                self._count(tree)
                if len(recent) < _REMEMBERED:
                    recent.append(tree)
                else:
                    recent[rng.randrange(_REMEMBERED)] = tree
                is_odd = rng.random() < _ODD_SHARE
                yield event_id, odd_text(tree) if is_odd else usual_text(tree)

    def _make(self, number: int) -> Tree:
        if self._story is None:
            tree = self._samples.make(number, self._plan.count)
        else:
            tree = next(self._story)
            self._samples.add(tree, self._unknown)
        if self._rng.random() < self._plan.late:
            self._make_late(tree)
        return tree

    def _make_late(self, tree: Tree) -> None:
        """Put an event before all that are in time, at a moment of its own."""
        path = self._model.partition_field.path
        moment = path.find(tree)
        while (late := moment - timedelta(days=self._late_days())) in self._late:
            moment -= timedelta(microseconds=1)
        self._late.add(late)
        put(tree, path, late)

    def _late_days(self) -> int:
        return self._plan.days + self._rng.randrange(1, _LATE_DAYS)

    def _count(self, tree: Tree) -> None:
        totals = self.totals
        totals.facts += 1
        moment = self._model.partition_field.path.find(tree).astimezone(UTC)
        totals.months[f"{moment:%Y-%m}"] += 1
        for column in self._model.columns:
            if column.type in (FieldType.NUMERIC, FieldType.BIGINT):
                value = _found(column.path.find(tree))
                if value is not None:
                    totals.sums[column.name] = totals.sums.get(column.name, Decimal(0)) + value
        for dimension in self._model.dimensions:
            key = tuple(_found(one.path.find(tree)) for one in dimension.key)
            if any(one is not None for one in key):
                totals.keys[dimension.name][key] += 1
        if self._story is not None and "amount" in tree:
            amount = tree["amount"] if tree["type"] == "purchase" else -tree["amount"]
            before = totals.net_revenue.get(tree["currency"], Decimal(0))
            totals.net_revenue[tree["currency"]] = before + amount


def _found(value: Any) -> Any:
    return None if value is MISSING else value


@dataclass(frozen=True, slots=True)
class GeneratedEvents:
    """What was made up, and how much of it was not there before."""

    connection: str
    table: str
    added: int
    totals: Totals


def generate_events(context: Context, plan: Generation) -> GeneratedEvents:
    """Make the tables if need be, and add events; given again, the same ones are not added."""
    events = find_events(context)
    generator = EventGenerator(events.model, plan)
    try:
        with context.databases.lease(events.connection) as connection:
            ensure_tables(connection, events)
            bodies = ((event_id, body, None) for event_id, body in generator.events())
            added = copy_in(connection, events.raw, bodies)
    except psycopg.Error as error:
        raise translate(error, f"writing events to {label(events.connection)}") from error
    return GeneratedEvents(events.connection, str(events.raw), added, generator.totals)
