"""The third phase: views follow the facts, one by one, and nobody who reads them waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from psycopg import errors as pg

from integration.conftest import Database, MakePlace
from integration.event_queues import small_events, small_model
from tidegate.core.errors import StaleAttempt
from tidegate.events.model import EventView
from tidegate.events.project_events import ProjectEvents
from tidegate.events.provision import provision
from tidegate.events.refresh import RefreshEnd, refresh
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection

LOG = "SELECT mv_name, rows, changes, error FROM analytics.mv_refresh_log ORDER BY 1"


@pytest.fixture
def context(make_place: MakePlace) -> Iterator[Context]:
    with make_place().open() as project:
        yield project.context


@pytest.fixture
def base(context: Context) -> Database:
    return Database(context.databases.conninfo("warehouse"))


@pytest.fixture
def session(context: Context) -> Iterator[Connection]:
    with context.databases.connect("warehouse") as connection:
        provision(context, small_events(), connection)
        yield connection


def load(base: Database, *pages: str) -> None:
    """What a batch of the second phase leaves."""
    for page in pages:
        base.execute(
            "INSERT INTO warehouse.fact_events (event_hash, occurred_at, page, cost)"
            f" VALUES (sha256('{page}'), now(), '{page}', 2)"
        )
    base.execute("UPDATE tidegate.event_changes SET changes = changes + 1")


def run(
    context: Context,
    session: Connection,
    events: ProjectEvents | None = None,
    *,
    force: bool = False,
) -> list[RefreshEnd]:
    return refresh(
        context, events or small_events(), session, force=force, check_alive=lambda: None
    )


def outcomes(ends: list[RefreshEnd]) -> list[tuple[str, str, int | None]]:
    return [(one.view.removeprefix("analytics.mv_"), one.outcome, one.rows) for one in ends]


def pages(query: str) -> ProjectEvents:
    views = small_model().views
    return small_events(small_model(views=(replace(views[0], query=query), views[1])))


def test_views_are_filled_first_then_only_when_something_changed_and_put_right(
    context: Context, session: Connection, base: Database
) -> None:
    def stale() -> None:
        raise StaleAttempt("replaced")

    with pytest.raises(StaleAttempt):
        refresh(context, small_events(), session, check_alive=stale)
    with pytest.raises(pg.UndefinedTable):
        base.execute("SELECT * FROM analytics.mv_pages")

    load(base, "home", "cart")
    assert outcomes(run(context, session)) == [("pages", "refreshed", 2), ("days", "refreshed", 1)]
    assert base.execute(LOG) == [
        ("analytics.mv_days", 1, 1, None),
        ("analytics.mv_pages", 2, 1, None),
    ]
    assert outcomes(run(context, session)) == [("pages", "unchanged", 2), ("days", "unchanged", 1)]
    load(base, "help")
    assert outcomes(run(context, session)) == [("pages", "refreshed", 3), ("days", "refreshed", 1)]
    assert base.value("SELECT count(*) FROM analytics.mv_pages") == 3
    assert outcomes(run(context, session, force=True))[0] == ("pages", "refreshed", 3)
    assert base.value("SELECT min(duration) > '0s' FROM analytics.mv_refresh_log")

    # What others emptied or broke.
    base.execute(
        "DROP INDEX analytics.mv_pages_page_idx",
        "REFRESH MATERIALIZED VIEW analytics.mv_days WITH NO DATA",
    )
    load(base, "blog")
    assert outcomes(run(context, session)) == [("pages", "refreshed", 4), ("days", "refreshed", 1)]
    base.execute("DROP MATERIALIZED VIEW analytics.mv_pages")
    assert outcomes(run(context, session)) == [("pages", "refreshed", 4), ("days", "unchanged", 1)]


def test_one_that_fails_does_not_stop_the_others_and_says_why(
    context: Context, session: Connection, base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A relation of another making is not touched.
    base.execute(
        "CREATE MATERIALIZED VIEW analytics.mv_pages AS SELECT 7 AS mine",
        "CREATE TABLE analytics.mv_days (mine int)",
    )
    ends = run(context, session)
    assert [one.outcome for one in ends] == ["failed", "failed"]
    assert all("not made by Tidegate" in str(one.error) for one in ends)
    assert base.execute("SELECT mine FROM analytics.mv_pages") == [(7,)]
    base.execute("DROP MATERIALIZED VIEW analytics.mv_pages", "DROP TABLE analytics.mv_days")

    load(base, "home", "cart")
    twice = pages("SELECT 'same' AS page, event_hash FROM warehouse.fact_events")
    assert "not unique by the columns" in str(run(context, session, twice)[0].error)
    bad = pages("SELECT page, 1 / 0 AS events FROM warehouse.fact_events")
    load(base)
    ends = run(context, session, bad)
    assert [one.outcome for one in ends] == ["failed", "refreshed"]
    assert ends[0].error == "division by zero"
    assert base.execute(LOG)[1] == ("analytics.mv_pages", None, None, "division by zero")
    # It is tried again, and put right when it works.
    assert [one.outcome for one in run(context, session)] == ["refreshed", "unchanged"]
    assert base.execute(LOG)[1] == ("analytics.mv_pages", 2, 2, None)

    # A new definition that fails leaves the old one as it is.
    home = "SELECT page, events FROM analytics.mv_pages ORDER BY 1"
    rows = [("cart", 1), ("home", 1)]
    assert run(context, session, bad)[0].outcome == "failed"
    assert base.execute(home) == rows
    base.execute("CREATE VIEW analytics.of_others AS SELECT page FROM analytics.mv_pages")
    ends = run(context, session, pages("SELECT 'x' AS page, 0 AS events"))
    assert "others depend on it: view analytics.of_others" in str(ends[0].error)
    assert base.execute(home) == rows
    base.execute("DROP VIEW analytics.of_others")

    # One that another keeps locked is not waited for for ever.
    monkeypatch.setattr("tidegate.events.refresh._LOCK_TIMEOUT", "100ms")
    run(context, session)
    load(base, "help")
    with base.connect() as other:
        other.execute("BEGIN; REFRESH MATERIALIZED VIEW analytics.mv_pages")
        ends = run(context, session)
        other.execute("ROLLBACK")
    assert [one.outcome for one in ends] == ["failed", "refreshed"]
    assert "another session keeps it locked" in str(ends[0].error)
    assert [one.outcome for one in run(context, session)] == ["refreshed", "unchanged"]


def test_a_new_definition_takes_the_place_of_the_old_with_its_rights(
    context: Context, session: Connection, base: Database
) -> None:
    load(base, "home", "cart")
    run(context, session)
    base.execute(
        "GRANT SELECT ON analytics.mv_pages TO PUBLIC",
        "GRANT SELECT ON analytics.mv_pages TO pg_monitor WITH GRANT OPTION",
        "COMMENT ON MATERIALIZED VIEW analytics.mv_pages IS 'for 100% of us'",
    )
    rights = "SELECT relacl::text FROM pg_class WHERE oid = 'analytics.mv_pages'::regclass"
    before = base.value(rights)
    wide = pages(
        "SELECT page, count(*) AS events, sum(cost) AS cost FROM warehouse.fact_events"
        " GROUP BY page"
    )
    assert [one.outcome for one in run(context, session, wide)] == ["refreshed", "unchanged"]
    assert base.execute("SELECT * FROM analytics.mv_pages ORDER BY 1") == [
        ("cart", 1, 2),
        ("home", 1, 2),
    ]
    assert base.value(rights) == before
    assert base.value("SELECT obj_description('analytics.mv_pages'::regclass)") == "for 100% of us"
    load(base, "help")
    assert [one.outcome for one in run(context, session, wide)] == ["refreshed", "refreshed"]
    names = "SELECT matviewname FROM pg_matviews ORDER BY 1"
    assert [row[0] for row in base.execute(names)] == ["mv_days", "mv_pages"]

    # A reader of the old definition is waited for and not cut off.
    with base.connect() as reader:
        reader.execute("BEGIN; SELECT * FROM analytics.mv_pages")
        ended = threading.Timer(0.5, lambda: reader.execute("COMMIT"))
        ended.start()
        ends = run(context, session, pages("SELECT 'x' AS page, 0 AS events"))
        ended.join()
    assert ends[0].outcome == "refreshed"
    assert base.execute("SELECT page FROM analytics.mv_pages") == [("x",)]


def test_a_reader_that_never_stops_is_never_kept_waiting(
    context: Context, session: Connection, base: Database
) -> None:
    load(base, "home")
    run(context, session)
    stopping, reads, trouble = threading.Event(), [0], list[psycopg.Error]()

    def read() -> None:
        with base.connect() as reader:
            # A refresh that shut readers out would make one of them wait longer.
            reader.execute("SET lock_timeout = '100ms'")
            while not stopping.is_set():
                try:
                    with reader.transaction():
                        reader.execute("SELECT * FROM analytics.mv_pages").fetchall()
                        reader.execute("SELECT pg_sleep(0.01)")
                    reads[0] += 1
                except psycopg.Error as error:
                    trouble.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for one in threads:
        one.start()
    slow = EventView(
        small_model().views[0].name,
        "SELECT page, count(*) AS events FROM warehouse.fact_events, pg_sleep(0.3) GROUP BY page",
        ("page",),
    )
    events = small_events(small_model(views=(slow,)))
    try:
        for page in ("a", "b"):
            load(base, page)
            assert run(context, session, events)[0].outcome == "refreshed"
    finally:
        stopping.set()
        for one in threads:
            one.join()
    assert reads[0] > 15
    assert trouble == []
