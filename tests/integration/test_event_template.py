"""The template for events, from nothing to its views, against sums made in plain Python."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conftest import MakeDatabase
from integration.commands import DONE, tidegate
from integration.conftest import Database
from tidegate.insight.scaffold import plan_project, write_project
from tidegate.pipeline.event_intake import copy_in
from tidegate.pipeline.event_process import process
from tidegate.pipeline.event_provision import provision
from tidegate.pipeline.event_refresh import refresh
from tidegate.pipeline.events import Events, find_events
from tidegate.project import Project

WEEK = timedelta(weeks=1)
FUNNELS = {
    "purchase": (
        timedelta(hours=168),
        ("product_viewed", "cart_filled", "checkout_started", "purchase"),
    ),
    "activation": (timedelta(hours=336), ("signup", "feature_used", "invite_sent")),
}


@dataclass(frozen=True, slots=True)
class Star:
    """A project made from the template, and its warehouse."""

    folder: Path
    project: Project
    events: Events
    database: Database

    def work(self) -> None:
        """The three phases, here."""
        context = self.project.context
        with self.project.connect("warehouse") as connection:
            provision(context, self.events, connection)
            process(
                context,
                self.events,
                attempt_id="f" * 32,
                budget_seconds=120,
                check_alive=lambda: None,
                provision=lambda months: None,
            )
            for end in refresh(context, self.events, connection, check_alive=lambda: None):
                assert end.error is None, end

    def rows(self, columns: str, view: str, order: str) -> list[tuple[Any, ...]]:
        return self.database.execute(f"SELECT {columns} FROM analytics.{view} ORDER BY {order}")


@pytest.fixture
def star(tmp_path: Path, make_database: MakeDatabase) -> Iterator[Star]:
    folder = tmp_path / "shop"
    write_project(plan_project(folder, "shop", None, "events"))
    database = Database(make_database("warehouse"))
    toml = folder / "tidegate.toml"
    text = toml.read_text()
    text = text.replace('"embedded:warehouse"', json.dumps(database.conninfo))
    text = text.replace('"embedded"', json.dumps(make_database("control")))
    toml.write_text(text)
    with Project.open(folder, **{"events.spark_from": 1_000_000}) as project:
        yield Star(folder, project, find_events(project.context), database)


def command(star: Star, *arguments: str) -> Any:
    done = tidegate(star.folder, *arguments, "--json")
    assert done.code == DONE, done.said
    return done.document


def test_what_comes_out_is_what_the_generator_counted(star: Star) -> None:
    arguments = ("--count", "4000", "--seed", "11", "--duplicates", "0.1", "--malformed", "0.05")
    file = star.folder / "totals.json"
    totals = command(star, "event", "generate", *arguments, "--late", "0.02", "--totals", str(file))
    assert json.loads(file.read_text()) == totals
    assert totals["added"] == totals["events"] == 4_000
    assert totals["facts"] + totals["duplicates"] + totals["failed"] == 4_000
    assert min(totals["duplicates"], totals["failed"], len(totals["months"])) > 4

    star.work()
    found = dict(star.database.execute("SELECT status, count(*) FROM raw_events GROUP BY 1"))
    assert found == {"failed": totals["failed"], "done": 4_000 - totals["failed"]}
    assert not star.database.execute(
        "SELECT 1 FROM raw_events WHERE (error IS NULL) <> (status = 'done')"
    )
    one = "SELECT count(*), sum(amount)::text FROM warehouse.fact_events"
    assert star.database.execute(one) == [(totals["facts"], totals["sums"]["amount"])]
    months = "SELECT to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM'), count(*) "
    months += "FROM warehouse.fact_events GROUP BY 1"
    assert dict(star.database.execute(months)) == totals["months"]
    for name, rows in totals["dimensions"].items():
        assert star.database.value(f"SELECT count(*) FROM warehouse.dim_{name}") == rows, name
    by_type = "SELECT event_type, count(*) FROM warehouse.fact_events GROUP BY 1"
    assert dict(star.database.execute(by_type)) == totals["facts_of"]["event_types"]
    net = "SELECT currency, sum(net)::text FROM analytics.mv_revenue_summary GROUP BY 1"
    assert dict(star.database.execute(net)) == totals["net_revenue"]
    odd = "SELECT count(*) FROM raw_events WHERE status = 'done' AND payload IS NULL"
    assert 0 < star.database.value(odd) < 40

    again = command(star, "event", "generate", *arguments, "--late", "0.02")
    assert again == {**totals, "added": 0}


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


def test_the_views_are_what_plain_python_makes_of_the_events(star: Star) -> None:
    rng = random.Random(5)
    events: list[dict[str, Any]] = []
    for users, count in ((2, 100), (40, 500), (300, 4_000)):
        more = made_up(rng, count, users)
        events += more
        with star.project.connect("warehouse") as connection:
            provision(star.project.context, star.events, connection)
            bodies = ((UUID(one["event_id"]), json.dumps(one), None) for one in more)
            assert copy_in(connection, star.events.raw, bodies) == len(more)
        star.work()
        assert star.database.value("SELECT count(*) FROM warehouse.fact_events") == len(events)
        assert star.rows(
            "funnel, step, users, of_previous, of_first", "mv_conversion_funnels", "1, 2"
        ) == list(funnels(events))
        assert star.rows("*", "mv_retention_cohorts", "1") == list(cohorts(events))
        assert star.rows("*", "mv_revenue_summary", "1, 2, 3") == list(revenue(events))
        assert star.rows("*", "mv_experiment_results", "1, 2") == list(experiments(events))
    reached = star.rows("users", "mv_conversion_funnels", "funnel, step")
    assert len({row[0] for row in reached}) > 4, "the funnels narrow"


def test_a_view_is_the_same_in_any_time_zone(star: Star) -> None:
    events = made_up(random.Random(9), 300, 20)
    with star.project.connect("warehouse") as connection:
        provision(star.project.context, star.events, connection)
        bodies = ((UUID(one["event_id"]), json.dumps(one), None) for one in events)
        copy_in(connection, star.events.raw, bodies)
    star.work()
    for view in star.events.model.views:
        elsewhere = star.database.execute(
            f"ALTER DATABASE {star.database.value('SELECT quote_ident(current_database())')} "
            "SET TimeZone = 'Pacific/Auckland'",
        )
        assert elsewhere == []
        with star.database.connect() as connection:
            assert connection.execute("SHOW TimeZone").fetchone() == ("Pacific/Auckland",)
            fresh = set(connection.execute(view.query).fetchall())  # type: ignore[call-overload]
            kept = connection.execute(f"SELECT * FROM {view.name}")  # type: ignore[call-overload]
            assert fresh == set(kept.fetchall())


def test_without_facts_every_view_can_be_made_and_read(star: Star) -> None:
    star.work()
    assert len(star.rows("*", "mv_conversion_funnels", "1")) == 7
    for name in ("mv_retention_cohorts", "mv_revenue_summary", "mv_experiment_results"):
        assert star.rows("*", name, "1") == []


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
