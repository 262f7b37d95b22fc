"""Two attempts at one load of a lake's table, in every order; and others who write to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from integration.conftest import Database
from integration.interleaving import Steps, reach, stepwise
from integration.lake_harness import Lake, LakeHarness, lake_shape, make_lake
from tidegate.destinations import lake_publishing
from tidegate.errors import FenceLost
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.lake import PICKED_ID, attempt_of
from tidegate.model.load import Published
from tidegate.model.rules import Mode, Rules
from tidegate.spark.session import SparkSessions

__all__ = ["stepwise"]

ZOMBIE = (
    "branch.created",
    "branch.staged",
    "intent.noted",
    "branch.forwarded",
    "publish.committed",
    "branch.dropped",
)
SUCCESSOR = ("fence.raised", "healed", "existed", *ZOMBIE[:5])
# Where the one stands, and how far the other gets before the one goes on.
DANGEROUS = {
    ("branch.created", "existed"),
    ("branch.staged", "branch.created"),
    ("intent.noted", "fence.raised"),
    ("intent.noted", "healed"),
    ("intent.noted", "intent.noted"),
    ("branch.forwarded", "fence.raised"),
    ("branch.forwarded", "publish.committed"),
}
ORDERS = [
    pytest.param(*order, marks=() if order in DANGEROUS else pytest.mark.chaos)
    for order in product(ZOMBIE, SUCCESSOR)
]


@pytest.fixture
def lake(database: Database, tmp_path: Path, warm_spark: SparkSessions) -> Lake:
    return make_lake(database, tmp_path, warm_spark)


def append_harness(lake: Lake) -> LakeHarness:
    """What is put in twice shows in an append."""
    return LakeHarness(lake, lake_shape(key="", unique=False), Rules(mode=Mode.APPEND))


def switch_off_triggers(lake: Lake) -> None:
    """Like a catalog that knows nothing of fences."""
    lake.database.execute(f"ALTER TABLE {lake.schema}.iceberg_tables DISABLE TRIGGER USER")


def first_attempt(harness: LakeHarness, update_id: str) -> Callable[[], Published]:
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, update_id, 1), (2, update_id, 2)])
    planned = harness.watermark()
    batch = Batch(BatchKind.RANGE, planned.value, str(int(planned.value or 0) + 2))
    return lambda: harness.publish(fence, writes, batch, update_id=update_id, watermark=planned)


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
    writes = harness.stage(fence, [(1, update_id, 1), (2, update_id, 2)])
    planned = harness.watermark()
    batch = Batch(BatchKind.RANGE, planned.value, str(int(planned.value or 0) + 2))
    published = harness.publish(fence, writes, batch, update_id=update_id, watermark=planned)
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


@pytest.mark.parametrize("fenced", [True, False], ids=["trigger", "no trigger"])
@pytest.mark.parametrize(("at", "until"), ORDERS)
@pytest.mark.usefixtures("stepwise")
def test_of_two_attempts_at_one_load_one_publishes(
    lake: Lake, at: str, until: str, fenced: bool
) -> None:
    harness = append_harness(lake)
    if not fenced:
        switch_off_triggers(lake)
    zombie = Steps(first_attempt(harness, "u"), at).start()
    successor = Steps(lambda: next_attempt(harness, "u"), until).start()
    zombie.finish()
    successor.finish()
    assert successor.error is None
    assert zombie.error is None or isinstance(zombie.error, FenceLost)
    assert_in_once(harness, "u")
    intents = lake.database.execute(f"SELECT abandoned FROM {lake.schema}.intents")
    assert intents in ([], [(True,)])


@pytest.mark.parametrize("fenced", [True, False], ids=["trigger", "no trigger"])
@pytest.mark.usefixtures("stepwise")
def test_a_zombie_that_moves_main_between_anothers_look_and_its_branch_is_noticed(
    lake: Lake, fenced: bool
) -> None:
    harness = append_harness(lake)
    if not fenced:
        switch_off_triggers(lake)
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
            row = f"({written[-1]}, 'external', 0)"
            into = harness.lake.catalog.quoted(harness.destination.relation)
            with harness.session() as session:
                session.run(f"INSERT INTO {into} VALUES {row}")

    monkeypatch.setattr(lake_publishing, "reach", write)
    return written


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.MERGE])
@pytest.mark.parametrize("times", [1, 6])
def test_others_who_keep_writing_lose_nothing_and_stop_no_load(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode, times: int
) -> None:
    harness = append_harness(lake)
    if mode is Mode.MERGE:
        harness = LakeHarness(lake)
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
    """Main then lies behind the branch, and nothing would hinder its move to all of it."""
    harness = append_harness(lake)
    next_attempt(harness, "before")
    relation = harness.destination.relation
    taken_back = [harness.read().main]
    with harness.session() as foreign:
        foreign.run(f"INSERT INTO {lake.catalog.quoted(relation)} VALUES (9, 'external', 0)")

        def roll_back(name: str) -> None:
            if name == "branch.created" and taken_back:
                snapshot = taken_back.pop()
                foreign.run(
                    "CALL `lake`.system.rollback_to_snapshot("
                    f"table => 'raw.{relation.name}', snapshot_id => {snapshot})"
                )

        monkeypatch.setattr(lake_publishing, "reach", roll_back)
        next_attempt(harness, "u")
    assert {row[1] for row in harness.rows()} == {"before", "u"}
    assert_in_once(harness, "u", version=2)


def test_what_an_attempt_says_of_its_commits_is_said_of_no_others(lake: Lake) -> None:
    harness = append_harness(lake)
    into = lake.catalog.quoted(harness.destination.relation)
    with harness.session() as foreign:
        fence = harness.attempt()
        writes = harness.stage(fence, [(1, "u", 1)])
        harness.publish(fence, writes, Batch(BatchKind.RANGE, None, "2"), update_id="u")
        foreign.run(f"INSERT INTO {into} VALUES (9, 'external', 0)")
    newest, mine, *_ = harness.read().ancestors()
    assert not [name for name in newest.summary if name.startswith(("tidegate", "wap"))]
    assert mine.summary["tidegate.attempt-id"] == fence.attempt_id
    assert mine.summary["tidegate.update-id"] == "u"
    assert mine.summary["tidegate.to"] == "2"
