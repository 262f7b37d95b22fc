"""The template for events, from nothing to its views, against sums made in plain Python."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from integration.conftest import MakePlace, Place
from integration.raw_events import event_place, run_phases
from tidegate.events.intake import copy_in
from tidegate.events.project_events import find_events
from tidegate.project import Project

WEEK = timedelta(weeks=1)
FUNNELS = {
    "purchase": (
        timedelta(hours=168),
        ("product_viewed", "cart_filled", "checkout_started", "purchase"),
    ),
    "activation": (timedelta(hours=336), ("signup", "feature_used", "invite_sent")),
}


def work(project: Project) -> None:
    """The three phases, here."""
    for end in run_phases(project)[1]:
        assert end.error is None, end


def rows(place: Place, columns: str, view: str, order: str) -> list[tuple[Any, ...]]:
    return place.target.execute(f"SELECT {columns} FROM analytics.{view} ORDER BY {order}")


# Some of all that can happen: ties, steps in the wrong order and outside of the window, users in
# two variants, refunds before purchases, events without user, amount, currency or variant.
KINDS = (*FUNNELS["purchase"][1], *FUNNELS["activation"][1], "refund", "experiment_viewed")
BEGAN = datetime(2026, 9, 7, tzinfo=UTC)


def made_up(rng: random.Random, count: int, users: int) -> list[dict[str, Any]]:
    events = []
    for _ in range(count):
        # Twice a day, so that moments meet and windows end at one.
        at = BEGAN + timedelta(hours=12 * rng.randrange(2 * 56))
        event: dict[str, Any] = {
            "event_id": str(UUID(int=rng.getrandbits(128), version=4)),
            "type": rng.choice(KINDS),
            "occurred_at": at.isoformat(),
            "account": {"id": f"a{rng.randrange(3)}"},
        }
        if rng.random() < 0.95:
            event["user"] = {"id": f"u{rng.randrange(users)}"}
        if rng.random() < 0.9:
            event["amount"] = rng.randrange(10_000) / 100
        if rng.random() < 0.9:
            event["currency"] = rng.choice(["EUR", "USD"])
        if rng.random() < 0.9:
            variant = rng.choice([None, "control", "a", "b"])
            event["experiment"] = {"name": rng.choice([None, "x", "y"]), "variant": variant}
        events.append(event)
    return events


def test_the_views_are_what_plain_python_makes_of_the_events(make_place: MakePlace) -> None:
    place = event_place(make_place, made=False, more={"spark_from": 1_000_000})
    rng = random.Random(5)
    events: list[dict[str, Any]] = []
    with place.open() as project:
        work(project)
        # Without facts every view can be made and read.
        assert len(rows(place, "*", "mv_conversion_funnels", "1")) == 7
        for name in ("mv_retention_cohorts", "mv_revenue_summary", "mv_experiment_results"):
            assert rows(place, "*", name, "1") == []

        for users, count in ((40, 400), (200, 1_500)):
            more = made_up(rng, count, users)
            events += more
            bodies = ((UUID(one["event_id"]), json.dumps(one), None) for one in more)
            with project.connect("warehouse") as connection:
                raw = find_events(project.context).raw
                assert copy_in(connection, raw, bodies) == len(more)
            work(project)
            facts = "SELECT count(*) FROM warehouse.fact_events"
            assert place.target.value(facts) == len(events)
            steps = "funnel, step, users, of_previous, of_first"
            assert rows(place, steps, "mv_conversion_funnels", "1, 2") == list(funnels(events))
            assert rows(place, "*", "mv_retention_cohorts", "1") == list(cohorts(events))
            assert rows(place, "*", "mv_revenue_summary", "1, 2, 3") == list(revenue(events))
            assert rows(place, "*", "mv_experiment_results", "1, 2") == list(experiments(events))
        reached = rows(place, "users", "mv_conversion_funnels", "funnel, step")
        assert len({row[0] for row in reached}) > 4, "the funnels narrow"

        # A view is the same in any time zone.
        with place.target.connect(options="-c TimeZone=Pacific/Auckland") as elsewhere:
            for view in find_events(project.context).model.views:
                fresh = elsewhere.execute(view.query)
                kept = elsewhere.execute(f"SELECT * FROM {view.name}")
                assert set(fresh.fetchall()) == set(kept.fetchall()), view.name


def moment(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["occurred_at"])


def user(event: dict[str, Any]) -> str | None:
    return event["user"]["id"] if "user" in event else None


def by_user(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        name = user(event)
        if name is not None:
            found[name].append(event)
    return found


def funnels(events: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """From every beginning, take each next step as soon as it comes."""
    for name, (window, steps) in sorted(FUNNELS.items()):
        reached = [0] * len(steps)
        for own in by_user(events).values():
            furthest = 0
            times = {kind: sorted(moment(e) for e in own if e["type"] == kind) for kind in steps}
            for began in times[steps[0]]:
                at, got = began, 1
                for kind in steps[1:]:
                    later = [one for one in times[kind] if at < one <= began + window]
                    if not later:
                        break
                    at, got = later[0], got + 1
                furthest = max(furthest, got)
            for step in range(furthest):
                reached[step] += 1
        for step, users in enumerate(reached):
            before = reached[step - 1] if step else 0
            yield name, step + 1, users, share(users, before), share(users, reached[0])


def cohorts(events: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    def week(at: datetime) -> date:
        return at.date() - timedelta(days=at.weekday())

    weeks = {name: {week(moment(e)) for e in own} for name, own in by_user(events).items()}
    last = max(max(one) for one in weeks.values())
    for first in sorted({min(one) for one in weeks.values()}):
        members = [one for one in weeks.values() if min(one) == first]
        back = [sum(first + n * WEEK in one for one in members) for n in (1, 2, 4)]
        shares = [
            share(count, len(members)) if first + n * WEEK <= last else None
            for n, count in zip((1, 2, 4), back, strict=True)
        ]
        yield first, len(members), *back, *shares


def revenue(events: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    paid: dict[tuple[str, date, str], dict[str, list[Decimal]]] = defaultdict(
        lambda: {"purchase": [], "refund": []}
    )
    for event in events:
        if event["type"] in ("purchase", "refund") and {"amount", "currency"} <= event.keys():
            key = event["account"]["id"], moment(event).date(), event["currency"]
            paid[key][event["type"]].append(Decimal(str(event["amount"])))
    for key, found in sorted(paid.items()):
        got, back = found["purchase"], found["refund"]
        yield *key, len(got), len(back), sum(got), sum(back), sum(got) - sum(back)


def experiments(events: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for own in by_user(events).values():
        bought = [moment(e) for e in own if e["type"] == "purchase"]
        seen: dict[str, tuple[datetime, str]] = {}
        for event in own:
            shown = event.get("experiment", {})
            name, variant = shown.get("name"), shown.get("variant")
            if event["type"] == "experiment_viewed" and name and variant:
                first = (moment(event), variant)
                seen[name] = min(seen.get(name, first), first)
        for name, (at, variant) in seen.items():
            counts[name, variant][0] += 1
            counts[name, variant][1] += any(one > at for one in bought)
    for (name, variant), (users, converted) in sorted(counts.items()):
        lift = z = None
        if variant != "control" and (name, "control") in counts:
            of, happened = counts[name, "control"]
            rate, base = converted / users, happened / of
            pooled = (converted + happened) / (users + of)
            error = math.sqrt(pooled * (1 - pooled) * (1 / users + 1 / of))
            lift = about(rate / base - 1) if base else None
            z = about((rate - base) / error) if error else None
        yield name, variant, users, converted, share(converted, users), lift, z


def share(part: int, whole: int) -> Any:
    return about(part / whole) if whole else None


def about(number: float) -> Any:
    return pytest.approx(Decimal(number), abs=Decimal("0.0001"))
