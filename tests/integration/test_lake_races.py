"""Two attempts at one load of a lake's table, in every order; and others who write to it.

And the fence in front of the embedded catalog: who may commit, and that nobody waits for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product

import psycopg
import pytest

from integration.destination_harness import load
from integration.interleaving import Steps, reach, stepwise
from integration.lake_harness import (
    REWRITE,
    Lake,
    LakeHarness,
    append_harness,
    lake,
    shared,
)
from tidegate.config.sync import Mode
from tidegate.core.batch import Batch, BatchKind, Published
from tidegate.core.errors import FenceLost
from tidegate.iceberg.table import PICKED_ID, attempt_of
from tidegate.ledger.fences import Fence, publisher_name
from tidegate.load.targets.iceberg import publish

__all__ = ["lake", "shared", "stepwise"]

ZOMBIE = (
    "branch.created",
    "branch.staged",
    "intent.noted",
    "branch.forwarded",
    "publish.committed",
    "branch.dropped",
)
SUCCESSOR = ("fence.raised", "healed", "existed", *ZOMBIE[:5])
# Where the one stands, how far the other gets before the one goes on, and whether the catalog
# itself looks at the fence.
DANGEROUS = {
    ("intent.noted", "fence.raised", False),
    ("intent.noted", "healed", True),
    ("intent.noted", "intent.noted", False),
    ("branch.forwarded", "publish.committed", False),
}
ORDERS = [
    pytest.param(*order, marks=() if order in DANGEROUS else pytest.mark.chaos)
    for order in product(ZOMBIE, SUCCESSOR, (True, False))
]


def staged(harness: LakeHarness, fence: Fence, update_id: str) -> Callable[[], Published]:
    """How an attempt that has planned and staged its load publishes it."""
    writes = harness.stage(fence, [(1, update_id, 1), (2, update_id, 2)])
    planned = harness.watermark()
    batch = Batch(BatchKind.RANGE, planned.value, str(int(planned.value or 0) + 2))
    return lambda: harness.publish(fence, writes, batch, update_id=update_id, watermark=planned)


def first_attempt(harness: LakeHarness, update_id: str) -> Callable[[], Published]:
    return staged(harness, harness.attempt(), update_id)


def next_attempt(harness: LakeHarness, update_id: str, *, heal: bool = True) -> Published | None:
    """Takes over as a worker does; None when it finds the load done."""
    fence = harness.attempt()
    reach("fence.raised")
    if heal:
        harness.destination.heal(fence)
        reach("healed")
    exists = harness.exists(update_id)
    reach("existed")
    if exists:
        return None
    published = staged(harness, fence, update_id)()
    harness.discard(fence)
    return published


def assert_in_once(harness: LakeHarness, update_id: str, version: int = 1) -> None:
    mine = [row for row in harness.rows() if row[1] == update_id]
    assert mine == [(1, update_id, 1), (2, update_id, 2)]
    assert harness.markers().count(update_id) == 1
    watermark = harness.watermark()
    assert (watermark.version, watermark.rows_synced) == (version, 2 * version)
    assert watermark.value == str(2 * version)
    harness.sweep()
    assert [ref for ref in harness.read().refs if attempt_of(ref)] == []


def race(harness: LakeHarness, at: str, until: str) -> BaseException | None:
    """Two attempts at one load, of which one publishes; how the first ended."""
    zombie = Steps(first_attempt(harness, "u"), at).start()
    successor = Steps(lambda: next_attempt(harness, "u"), until).start()
    zombie.finish()
    successor.finish()
    assert successor.error is None
    assert zombie.error is None or isinstance(zombie.error, FenceLost)
    assert_in_once(harness, "u")
    return zombie.error


@pytest.mark.parametrize(("at", "until", "fenced"), ORDERS)
@pytest.mark.usefixtures("stepwise")
def test_of_two_attempts_at_one_load_one_publishes(
    lake: Lake, at: str, until: str, fenced: bool
) -> None:
    harness = append_harness(lake)
    with nullcontext() if fenced else lake.without_triggers():
        race(harness, at, until)
    assert harness.intents() in ([], [("u", True)])


@pytest.mark.parametrize("fenced", [pytest.param(True, marks=pytest.mark.chaos), False])
@pytest.mark.usefixtures("stepwise")
def test_a_zombie_that_moves_main_between_anothers_look_and_its_branch_is_noticed(
    lake: Lake, fenced: bool
) -> None:
    harness = append_harness(lake)
    with nullcontext() if fenced else lake.without_triggers():
        zombie = Steps(first_attempt(harness, "u"), "intent.noted").start()
        successor = Steps(lambda: next_attempt(harness, "u", heal=False), "existed").start()
        zombie.finish()
        assert isinstance(zombie.error, FenceLost)
        assert len(harness.rows()) == (0 if fenced else 2)
        successor.finish()
    assert successor.error is None
    assert successor.result.already is not fenced
    assert_in_once(harness, "u")


def write_at(
    monkeypatch: pytest.MonkeyPatch, harness: LakeHarness, point: str, times: int
) -> list[int]:
    """Somebody else commits a row each time that the load has got to a point."""
    written: list[int] = []

    def write(name: str) -> None:
        if name == point and len(written) < times:
            written.append(1000 + len(written))
            harness.insert(written[-1])

    monkeypatch.setattr(publish, "reach", write)
    return written


@pytest.mark.parametrize(
    ("mode", "times"),
    [
        (Mode.APPEND, 6),
        (Mode.MERGE, 1),
        pytest.param(Mode.APPEND, 1, marks=pytest.mark.chaos),
        pytest.param(Mode.MERGE, 6, marks=pytest.mark.chaos),
    ],
)
def test_others_who_keep_writing_lose_nothing_and_stop_no_load(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode, times: int
) -> None:
    harness = append_harness(lake) if mode is Mode.APPEND else LakeHarness(lake)
    next_attempt(harness, "before")
    written = write_at(monkeypatch, harness, "intent.noted", times)
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "u", 3), (2, "u", 4)])
    batch = Batch(BatchKind.RANGE, "2", "4")
    published = harness.publish(fence, writes, batch, update_id="u")
    assert (published.rows, published.changed, published.already) == (2, 2, False)
    rows = harness.rows()
    assert [row[0] for row in rows if row[1] == "external"] == written
    assert [row for row in rows if row[1] == "u"] == [(1, "u", 3), (2, "u", 4)]
    assert len(rows) == len(written) + (4 if mode is Mode.APPEND else 2)
    assert len(written) == (1 if times == 1 else 4)
    assert harness.watermark().version == 2
    assert harness.markers() == ["before", "u"]
    picked = [one for one in harness.read().ancestors() if PICKED_ID in one.summary]
    assert len(picked) == (times == 6 and mode is Mode.APPEND)


def test_rows_that_another_takes_back_once_the_branch_is_made_do_not_return(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main then lies behind the branch, and nothing would hinder its move to all of it.

    What an attempt says of its commits is said of no others.
    """
    harness = append_harness(lake)
    with harness.session() as foreign:
        next_attempt(harness, "before")
        taken_back = [harness.foreign().metadata.current_snapshot_id or 0]
        foreign.run(harness.statement(KINDS[0]))
    newest, mine, *_ = harness.read().ancestors()
    assert not [name for name in newest.summary if name.startswith(("tidegate", "wap"))]
    assert len(mine.summary["tidegate.attempt-id"]) == 32
    assert mine.summary["tidegate.update-id"] == "before"
    assert mine.summary["tidegate.to"] == "2"

    def roll_back(name: str) -> None:
        if name == "branch.created" and taken_back:
            table = harness.foreign().manage_snapshots()
            table.rollback_to_snapshot(taken_back.pop()).commit()

    monkeypatch.setattr(publish, "reach", roll_back)
    next_attempt(harness, "u")
    assert {row[1] for row in harness.rows()} == {"before", "u"}
    assert_in_once(harness, "u", version=2)


KINDS = (
    "INSERT INTO {table} VALUES (9, 'external', 0)",
    "ALTER TABLE {table} CREATE BRANCH mine",
    "ALTER TABLE {table} ADD COLUMN more int",
    "DELETE FROM {table} WHERE id = 1",
    REWRITE,
    "CALL {system}.expire_snapshots(table => {name}, older_than => TIMESTAMP '2100-01-01')",
)


def test_a_stale_session_commits_nothing_of_any_kind_and_a_foreign_one_is_not_hindered(
    lake: Lake,
) -> None:
    harness = LakeHarness(lake)
    load(harness, (1, "a", 1))
    fence = harness.attempt()
    name = publisher_name(fence.attempt_id)
    sessions = f"FROM pg_stat_activity WHERE application_name = '{name}'"
    with harness.session(fence.attempt_id) as session:
        session.run(harness.statement("INSERT INTO {table} VALUES (7, 'while it held', 0)"))
        # A session that was idle for too long is ended, and opened again.
        ended = lake.database.execute(f"SELECT pg_terminate_backend(pid, 5000) {sessions}")
        assert ended == [(True,)]
        session.run(harness.statement("INSERT INTO {table} VALUES (8, 'the table', 0)"))
        assert lake.database.value(f"SELECT count(*) {sessions} AND state = 'idle'") == 1
        harness.attempt()
        before = harness.metadata_location()
        for text in KINDS:
            with pytest.raises(Exception, match=f"attempt {fence.attempt_id} was replaced"):
                session.run(harness.statement(text))
    assert harness.metadata_location() == before
    assert {row[1] for row in harness.rows()} == {"a", "while it held", "the table"}
    deadline = time.monotonic() + 10
    while lake.database.value(f"SELECT count(*) {sessions}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lake.database.value(f"SELECT count(*) {sessions}") == 0
    harness.maintain(*KINDS[:2])
    assert harness.metadata_location() != before


def hold_commit(harness: LakeHarness, attempt_id: str) -> psycopg.Connection[object]:
    """A session of the attempt in the middle of its commit."""
    connection = psycopg.connect(
        harness.lake.database.conninfo,
        application_name=publisher_name(attempt_id),
        options=f"-c tidegate.attempt={attempt_id}",
    )
    connection.execute(
        f"UPDATE {harness.lake.schema}.iceberg_tables SET metadata_location = metadata_location"  # type: ignore[arg-type]
        f" WHERE table_name = '{harness.destination.relation.name}'"
    )
    return connection


def test_a_fence_raised_during_a_commit_waits_for_it_and_not_for_ever(lake: Lake) -> None:
    harness = LakeHarness(lake, lock_timeout_seconds=0.5)
    with hold_commit(harness, harness.attempt().attempt_id) as held:
        raised = threading.Event()

        def take_over() -> None:
            harness.attempt()
            raised.set()

        thread = threading.Thread(target=take_over)
        started = time.monotonic()
        thread.start()
        assert not raised.wait(0.2)
        thread.join(10)
        assert raised.is_set()
        assert time.monotonic() - started < 10
        with pytest.raises(psycopg.OperationalError):
            held.execute("SELECT 1")


def test_a_commit_that_waits_for_the_fence_gives_up_in_time(lake: Lake) -> None:
    harness = LakeHarness(lake)
    attempt_id = harness.attempt().attempt_id
    with lake.database.connect() as holder, holder.transaction():
        holder.execute(f"SELECT FROM {lake.schema}.fences FOR UPDATE")  # type: ignore[arg-type]
        started = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            hold_commit(harness, attempt_id)
        assert time.monotonic() - started < 20
