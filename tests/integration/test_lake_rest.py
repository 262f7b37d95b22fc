"""A lake behind a REST catalog, which knows nothing of our fences: the same contract holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.conftest import Database
from integration.destination_conformance import (
    DestinationConformance,
    MakeHarness,
    MergeConformance,
)
from integration.interleaving import Steps, stepwise
from integration.lake_harness import Lake, make_lake, maker, spelled_out
from integration.rest_catalog import rest_server
from integration.test_lake_races import (
    append_harness,
    assert_in_once,
    first_attempt,
    next_attempt,
    write_at,
)
from tidegate.errors import FenceLost
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.rules import Mode
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.spark.session import SparkSessions

__all__ = ["stepwise"]


@pytest.fixture(scope="module")
def backend(server: EmbeddedServer) -> Database:
    """Where the server keeps its tables."""
    server.ensure_database("rest_backend")
    return Database(server.conninfo("rest_backend"))


@pytest.fixture(scope="module")
def rest_url(backend: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_server(tmp_path_factory.mktemp("rest") / "server", spelled_out(backend)) as url:
        yield url


@pytest.fixture
def lake(
    database: Database, backend: Database, rest_url: str, tmp_path: Path, warm_spark: SparkSessions
) -> Lake:
    made = make_lake(database, tmp_path, warm_spark, "rest", uri=rest_url)
    return replace(made, backend=backend, tables="public.iceberg_tables")


class TestMerge(DestinationConformance):
    """merge keeps the contract; which of two rows it keeps is no matter of the catalog."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


@pytest.mark.chaos
class TestMergeInFull(MergeConformance):
    """merge keeps the contract, row by row."""

    @pytest.fixture
    def make_harness(self, lake: Lake) -> MakeHarness:
        return maker(lake, Mode.MERGE)


@pytest.mark.parametrize(
    ("at", "until"),
    [
        ("branch.created", "existed"),
        ("branch.staged", "branch.created"),
        ("intent.noted", "fence.raised"),
        ("intent.noted", "healed"),
        ("publish.committed", "intent.noted"),
    ],
)
@pytest.mark.usefixtures("stepwise")
def test_of_two_attempts_at_one_load_one_publishes(lake: Lake, at: str, until: str) -> None:
    harness = append_harness(lake)
    zombie = Steps(first_attempt(harness, "u"), at).start()
    successor = Steps(lambda: next_attempt(harness, "u"), until).start()
    zombie.finish()
    successor.finish()
    assert successor.error is None
    assert zombie.error is None or isinstance(zombie.error, FenceLost)
    assert_in_once(harness, "u")


@pytest.mark.usefixtures("stepwise")
def test_whoever_takes_over_waits_for_main_to_be_moved_and_recorded(lake: Lake) -> None:
    """The fence row is held meanwhile, since the catalog itself does not look at it."""
    harness = append_harness(lake)
    first = Steps(first_attempt(harness, "u"), "branch.forwarded").start()
    assert (len(harness.rows()), harness.markers()) == (2, [])
    successor = Steps(lambda: next_attempt(harness, "u"), None)
    first.finish_soon()
    successor.start().finish()
    first.finish()
    assert (first.error, successor.error, successor.result) == (None, None, None)
    assert_in_once(harness, "u")


def test_others_who_keep_writing_lose_nothing_and_stop_no_load(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = append_harness(lake)
    next_attempt(harness, "before")
    written = write_at(monkeypatch, harness, "intent.noted", 6)
    fence = harness.attempt()
    writes = harness.stage(fence, [(1, "u", 3), (2, "u", 4)])
    harness.publish(fence, writes, Batch(BatchKind.RANGE, "2", "4"), update_id="u")
    rows = harness.rows()
    assert [row[0] for row in rows if row[1] == "external"] == written
    assert [row for row in rows if row[1] == "u"] == [(1, "u", 3), (2, "u", 4)]
    assert harness.watermark().version == 2
