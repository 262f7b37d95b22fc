"""What is noticed of jobs: each streak of failures once, its end once, nothing lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from integration.job_store import Store, open_store
from tidegate.control.dead import DeadAttempts
from tidegate.control.notices import Notices
from tidegate.control.retention import prune
from tidegate.model.job import JobStatus
from tidegate.postgres.embedded import EmbeddedServer

TASK_STATES = """
CREATE TABLE IF NOT EXISTS task_states (
    project text, name text, parameters_digest text, failures timestamptz[] NOT NULL,
    disabled_at timestamptz, disabled_until timestamptz, disabled_by text,
    PRIMARY KEY (project, name, parameters_digest))
"""


@pytest.fixture(scope="module")
def opened(server: EmbeddedServer) -> Iterator[Store]:
    with open_store(server) as store:
        yield store


@pytest.fixture
def store(opened: Store) -> Store:
    opened.clean()
    opened.execute("TRUNCATE failing, notices")
    opened.execute("DROP TABLE IF EXISTS task_states")
    return opened


def notices(store: Store, **options: Any) -> Notices:
    given: dict[str, Any] = {
        "channels": ("webhook",),
        "events": ("failure", "disable", "recovery"),
        "repeat_after_seconds": 3_600,
    }
    return Notices(store.plane, "shop", **(given | options))


def notice(store: Store, **options: Any) -> list[str]:
    """Look once; the texts that this adds to the outbox."""
    before = {row[0] for row in store.execute("SELECT notice_id FROM notices")}
    notices(store, **options).notice(store.session)
    rows = store.execute("SELECT notice_id, document ->> 'text' FROM notices ORDER BY created_at")
    return [text for one, text in rows if one not in before]


def end(store: Store, status: JobStatus, error: str | None = None, **options: Any) -> UUID:
    options.setdefault("kind", "sync")
    job_id = store.submit(max_attempts=1, **options)
    claim = store.claim_one(kinds=[options["kind"]], project=options.get("project", "shop"))
    assert claim.job_id == job_id
    assert store.jobs.finish(store.session, claim, status, actor="test", error=error)
    return job_id


def fail(store: Store, error: str = "no rows", **options: Any) -> UUID:
    return end(store, JobStatus.FAILED, error, **options)


def succeed(store: Store, **options: Any) -> UUID:
    return end(store, JobStatus.DONE, **options)


def test_a_failure_is_told_once_however_often_one_looks(store: Store) -> None:
    fail(store)
    assert notice(store) == ["shop: orders failed: no rows"]
    assert notice(store) == []


def test_a_streak_is_told_once_and_so_is_its_end(store: Store) -> None:
    told = []
    for _ in range(3):
        fail(store)
        told += notice(store)
    succeed(store)
    told += notice(store)
    succeed(store)
    told += notice(store)
    assert told == [
        "shop: orders failed: no rows",
        "shop: orders works again, after it had failed 3 times",
    ]


def test_nothing_is_missed_between_two_looks(store: Store) -> None:
    fail(store, "first")
    fail(store, "second")
    succeed(store)
    fail(store, "third")
    succeed(store)
    assert notice(store) == [
        "shop: orders failed: first",
        "shop: orders works again, after it had failed 2 times",
        "shop: orders failed: third",
        "shop: orders works again, after it had failed once",
    ]


def test_a_streak_that_goes_on_is_told_again_after_a_while(store: Store) -> None:
    fail(store)
    notice(store)
    store.execute("UPDATE failing SET told_at = told_at - interval '59 minutes'")
    fail(store)
    assert notice(store) == []
    store.execute("UPDATE failing SET told_at = told_at - interval '2 minutes'")
    assert notice(store) == []
    fail(store, "still")
    assert notice(store) == ["shop: orders failed, 3 times in a row: still"]


def test_each_name_and_each_kind_has_its_own_streak(store: Store) -> None:
    fail(store)
    fail(store, name="stock")
    fail(store, kind="maintenance")
    assert len(notice(store)) == 3
    succeed(store, name="stock")
    assert notice(store) == ["shop: stock works again, after it had failed once"]


def test_other_kinds_cancelled_jobs_and_other_projects_are_not_told(store: Store) -> None:
    fail(store, kind="noop")
    fail(store, project="bank")
    end(store, JobStatus.CANCELLED)
    succeed(store)
    assert notice(store) == []
    assert store.execute("SELECT project FROM job_failures") == [("bank",)]


def test_a_task_is_well_when_all_its_parameters_are(store: Store) -> None:
    def run(day: int, status: JobStatus) -> list[str]:
        payload = {"parameters": {"day": f"2026-11-0{day}"}}
        end(store, status, "no rows", kind="task", name="revenue", payload=payload)
        return notice(store)

    assert run(1, JobStatus.FAILED) == ["shop: revenue day=2026-11-01 failed: no rows"]
    assert run(2, JobStatus.FAILED) == []
    assert run(3, JobStatus.DONE) == []
    assert run(2, JobStatus.DONE) == []
    assert run(1, JobStatus.DONE) == [
        "shop: revenue day=2026-11-01 works again, after it had failed once"
    ]


def test_what_gives_up_after_a_crash_is_a_failure_too(store: Store) -> None:
    job_id = store.submit(max_attempts=1)
    store.claim_one(worker_id=store.worker().worker_id)
    store.expire(job_id)
    (dead,) = DeadAttempts(store.plane).list(store.session)
    assert DeadAttempts(store.plane).reclaim(store.session, dead, "test", last=True)
    assert store.get(job_id).status is JobStatus.FAILED
    (text,) = notice(store)
    assert text.startswith("shop: orders failed")


def test_what_failed_only_because_of_what_it_requires_is_not_told_of(store: Store) -> None:
    fail(store)
    job_id = store.submit(name="behind it")
    store.execute(
        "UPDATE jobs SET status = 'failed', finished_at = now() WHERE job_id = %s", job_id
    )
    store.execute("DELETE FROM job_queue WHERE job_id = %s", job_id)
    assert notice(store) == ["shop: orders failed: no rows"]
    assert store.execute("SELECT * FROM job_failures") == []


def test_a_failure_that_is_rolled_back_is_none(store: Store) -> None:
    store.submit()
    claim = store.claim_one()
    with store.session.transaction(force_rollback=True):
        assert store.jobs.finish(store.session, claim, JobStatus.FAILED, actor="test")
    assert store.execute("SELECT * FROM job_failures") == []


def test_a_look_that_is_cut_short_is_as_if_it_had_not_been(store: Store) -> None:
    fail(store)
    with store.session.transaction(force_rollback=True):
        assert notices(store).notice(store.session) == 1
    assert notice(store) == ["shop: orders failed: no rows"]


def test_several_notifiers_make_one_message(store: Store) -> None:
    for name in ("a", "b", "c"):
        fail(store, name=name)

    def look(_: int) -> int:
        with store.plane.connect() as session:
            return notices(store).notice(session)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(look, range(8))) == 3


def test_where_nobody_is_to_be_told_nothing_piles_up(store: Store) -> None:
    fail(store)
    assert notice(store, channels=()) == []
    assert store.execute("SELECT * FROM job_failures") == []
    # Whoever asks to be told later hears of what is new then.
    assert notice(store) == []


def test_only_what_is_asked_for_is_told(store: Store) -> None:
    fail(store)
    assert notice(store, events=("recovery",)) == []
    succeed(store)
    assert len(notice(store, events=("recovery",))) == 1


def test_a_message_for_each_channel(store: Store) -> None:
    fail(store)
    assert notices(store, channels=("webhook", "command")).notice(store.session) == 2
    assert store.value("SELECT count(DISTINCT notice_id) FROM notices") == 1


def test_what_is_disabled_is_told_once_each_time(store: Store) -> None:
    store.execute(TASK_STATES)
    disabled = (
        "INSERT INTO task_states (project, name, parameters_digest, failures, disabled_at,"
        " disabled_until) VALUES (%s, %s, '', ARRAY[now()], now(), %s)"
    )
    store.execute(disabled, "shop", "revenue", "2999-01-01")
    store.execute(disabled, "shop", "by hand", "infinity")
    store.execute(disabled, "shop", "over", "2020-01-01")
    store.execute(disabled, "bank", "revenue", "2999-01-01")
    told = sorted(notice(store))
    assert [one.split(" failed")[0] for one in told] == ["shop: by hand", "shop: revenue"]
    assert "until 2999-01-01" in told[1]
    assert "tidegate schedule enable revenue" in told[1]
    assert notice(store) == []
    store.execute("UPDATE task_states SET disabled_at = now() WHERE name = 'revenue'")
    assert len(notice(store)) == 1


def test_jobs_that_failed_are_forgotten_like_others(store: Store) -> None:
    fail(store)
    store.execute(
        "UPDATE jobs SET submitted_at = now() - interval '90 days',"
        " finished_at = now() - interval '90 days'"
    )
    assert prune(store.session, store.plane, 86_400) == 1
    assert notice(store) == []


def test_messages_and_streaks_of_long_ago_are_forgotten(store: Store) -> None:
    fail(store)
    notice(store)
    store.execute("UPDATE notices SET created_at = now() - interval '90 days', ended_at = now()")
    store.execute("UPDATE failing SET last_failed_at = now() - interval '90 days'")
    fail(store, name="stock")
    notice(store)
    assert notices(store).prune(store.session, 86_400) == 1
    assert store.execute("SELECT name FROM notices") == [("stock",)]
    assert store.execute("SELECT name FROM failing") == [("stock",)]


def test_what_is_told_of_one_name_is_told_in_order(store: Store) -> None:
    fail(store)
    succeed(store)
    fail(store, name="stock")
    notice(store)
    outbox = notices(store)
    first = outbox.take(store.session, 60, set())
    assert first is not None
    assert first.document["event"] == "failure"
    outbox.put_off(store.session, first, 60, "down")
    # That orders works again waits for the news that it did not.
    second = outbox.take(store.session, 60, set())
    assert second is not None
    assert second.document["name"] == "stock"
    assert outbox.take(store.session, 60, set()) is None
    store.execute("UPDATE notices SET try_at = now() WHERE notice_id = %s", first.notice_id)
    again = outbox.take(store.session, 60, set())
    assert again is not None
    assert (again.notice_id, again.tries) == (first.notice_id, 2)
    outbox.end(store.session, again, "delivered", None)
    last = outbox.take(store.session, 60, set())
    assert last is not None
    assert last.document["event"] == "recovery"


def test_the_message_holds_what_a_program_needs(store: Store) -> None:
    job_id = fail(store, "x" * 5_000)
    notice(store)
    document = store.value("SELECT document FROM notices")
    assert document["job_id"] == str(job_id)
    assert (document["event"], document["kind"], document["name"]) == ("failure", "sync", "orders")
    assert len(document["error"]) <= 1_000
    assert document["failures"] == 1


def test_ending_well_writes_nothing_more_than_before(store: Store) -> None:
    """What a job that does not fail pays for notices: no row, and no index on its updates."""
    plan = "\n".join(
        row[0]
        for row in store.execute(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)"
            " UPDATE jobs SET status = 'done' WHERE status = 'running'"
        )
    )
    assert "jobs_failed" not in plan
    indexes = store.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'tidegate_control'"
        " AND tablename = 'jobs' AND indexdef ~ '(status|finished_at)'"
    )
    assert indexes == []
