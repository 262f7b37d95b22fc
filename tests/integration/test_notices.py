"""What is noticed of jobs: each streak of failures once, its end once, nothing lost or doubled."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from integration.job_store import Store, opened, store
from tidegate.jobs.job import JobStatus
from tidegate.jobs.notices import Notices
from tidegate.jobs.sweeper import prune

__all__ = ["opened", "store"]

FAILED = "shop: orders failed: no rows"


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


def fail(store: Store, error: str = "no rows", **options: Any) -> UUID:
    return store.end(JobStatus.FAILED, error, max_attempts=1, **options)


def succeed(store: Store, **options: Any) -> UUID:
    return store.end(JobStatus.DONE, **options)


def test_a_streak_is_told_once_and_so_is_its_end(store: Store) -> None:
    told = []
    for _ in range(3):
        fail(store)
        told += notice(store)
        told += notice(store)
    for _ in range(2):
        succeed(store)
        told += notice(store)
    assert told == [FAILED, "shop: orders works again, after it had failed 3 times"]


def test_nothing_is_missed_between_two_looks(store: Store) -> None:
    fail(store, "first")
    fail(store, "second")
    succeed(store)
    fail(store, "third")
    succeed(store)
    with store.session.transaction(force_rollback=True):
        assert notices(store).notice(store.session) == 4
    # One that is cut short is as if it had not been.
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


def test_a_task_is_well_when_all_its_parameters_are(store: Store) -> None:
    def run(day: int, status: JobStatus) -> list[str]:
        payload = {"parameters": {"day": f"2026-11-0{day}"}}
        store.end(status, "no rows", "revenue", max_attempts=1, kind="task", payload=payload)
        return notice(store)

    assert run(1, JobStatus.FAILED) == ["shop: revenue day=2026-11-01 failed: no rows"]
    assert run(2, JobStatus.FAILED) == []
    assert run(3, JobStatus.DONE) == []
    assert run(2, JobStatus.DONE) == []
    assert run(1, JobStatus.DONE) == [
        "shop: revenue day=2026-11-01 works again, after it had failed once"
    ]


def test_what_is_not_to_be_told_is_not(store: Store) -> None:
    fail(store, kind="noop")
    fail(store, project="bank")
    store.end(JobStatus.CANCELLED)
    succeed(store)
    assert notice(store) == []
    assert store.execute("SELECT project FROM job_failures") == [("bank",)]
    store.clean()
    # What failed only because of what it requires.
    fail(store)
    job_id = store.submit("behind it")
    store.execute(
        "UPDATE jobs SET status = 'failed', finished_at = now() WHERE job_id = %s", job_id
    )
    store.execute("DELETE FROM job_queue WHERE job_id = %s", job_id)
    assert notice(store) == [FAILED]
    # A failure that is rolled back.
    claim = store.claim(store.submit())
    with store.session.transaction(force_rollback=True):
        assert store.finish(claim, JobStatus.FAILED)
    assert store.execute("SELECT * FROM job_failures") == []


def test_what_gives_up_after_a_crash_is_a_failure_too(store: Store) -> None:
    job_id = store.submit(max_attempts=1)
    store.take_one(worker_id=store.new_worker().worker_id)
    store.expire(job_id)
    store.reclaim(last=True)
    assert store.get(job_id).status is JobStatus.FAILED
    (text,) = notice(store)
    assert text.startswith("shop: orders failed")


def test_several_notifiers_make_one_message(store: Store) -> None:
    for name in ("a", "b", "c"):
        fail(store, name=name)
    assert sum(store.at_once(6, lambda own, _: notices(store).notice(own))) == 3


def test_where_nobody_is_to_be_told_nothing_piles_up(store: Store) -> None:
    fail(store)
    assert notice(store, channels=()) == []
    assert store.execute("SELECT * FROM job_failures") == []
    # Whoever asks to be told later hears of what is new then.
    assert notice(store) == []
    store.clean()
    fail(store)
    assert notice(store, events=("recovery",)) == []
    succeed(store)
    assert len(notice(store, events=("recovery",))) == 1


def test_the_message_of_each_channel_holds_what_a_program_needs(store: Store) -> None:
    job_id = fail(store, "x" * 5_000)
    assert notices(store, channels=("webhook", "command")).notice(store.session) == 2
    assert store.value("SELECT count(DISTINCT notice_id) FROM notices") == 1
    document = store.value("SELECT document FROM notices")
    assert document["job_id"] == str(job_id)
    assert (document["event"], document["kind"], document["name"]) == ("failure", "sync", "orders")
    assert len(document["error"]) <= 1_000
    assert document["failures"] == 1


def test_what_is_disabled_is_told_once_each_time(store: Store) -> None:
    for project, name, until in (
        ("shop", "revenue", "2999-01-01"),
        ("shop", "by hand", "infinity"),
        ("shop", "over", "2020-01-01"),
        ("bank", "revenue", "2999-01-01"),
    ):
        store.execute(
            "INSERT INTO task_states (project, name, parameters_digest, failures, disabled_at,"
            " disabled_until) VALUES (%s, %s, '', ARRAY[now()], now(), %s)",
            *(project, name, until),
        )
    told = sorted(notice(store))
    assert [one.split(" failed")[0] for one in told] == ["shop: by hand", "shop: revenue"]
    assert "until 2999-01-01" in told[1]
    assert "tidegate schedule enable revenue" in told[1]
    assert notice(store) == []
    store.execute("UPDATE task_states SET disabled_at = now() WHERE name = 'revenue'")
    assert len(notice(store)) == 1


def test_what_is_long_ago_is_forgotten(store: Store) -> None:
    fail(store)
    long_ago = "now() - interval '90 days'"
    store.execute(f"UPDATE jobs SET submitted_at = {long_ago}, finished_at = {long_ago}")
    assert prune(store.session, store.plane, 86_400) == 1
    assert notice(store) == []
    fail(store)
    notice(store)
    store.execute(f"UPDATE notices SET created_at = {long_ago}, ended_at = now()")
    store.execute(f"UPDATE failing SET last_failed_at = {long_ago}")
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
