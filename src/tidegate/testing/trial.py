"""The real pipeline on fresh databases, over and over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tidegate.config import load_settings
from tidegate.config.sync import Sync
from tidegate.core.errors import TidegateError
from tidegate.core.failpoints import POINTS
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection
from tidegate.testing.oracle import (
    ContentDifference,
    LakeTrial,
    TableContent,
    compare,
    embedded_lake,
    expected_content,
    needs_clean_pass,
    rule_of,
    target_content,
)
from tidegate.testing.pipeline_process import Ended, Opening, PipelineProcess
from tidegate.testing.sandbox import FreshDatabases
from tidegate.testing.source_copy import SourceCopy

# More kills in a row than a real job would be given.
_MAX_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """The sync on trial, and where its project and our databases are."""

    databases: FreshDatabases
    root: Path
    sync: Sync
    logs: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None
    is_lake: bool = False
    """the target is a table of a lake"""
    # Called when the first process starts: what it brings about takes seconds.
    environment: Callable[[], dict[str, str]] = dict


class RunFailed(TidegateError):
    """The pipeline itself failed; nobody had killed it."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.error, ended.hint)
        self.kind = ended.kind


class Trial:
    """The real pipeline between a source and databases that nobody else uses."""

    def __init__(self, bench: TrialSetup, source: str, batch_rows: int) -> None:
        self._bench = bench
        self._batch_rows = batch_rows
        databases, sync = bench.databases, bench.sync
        self.source = source
        self._control = databases.make("control")
        self._made = [self._control]
        self.target = source
        self._runner: PipelineProcess | None = None
        self._lake: LakeTrial | None = None
        if bench.is_lake:
            # Its catalog and its ledger lie in the control database.
            self.target = self._control
        elif sync.target.connection != sync.source.connection:
            self.target = databases.make("warehouse")
            self._made.append(self.target)

    def start(self, failpoint: str | None = None) -> PipelineProcess:
        """The pipeline's process, which runs when told to."""
        bench, sync = self._bench, self._bench.sync
        overrides = self._overrides()
        if failpoint:
            # Spark's workers are not our children; this is how they get to know.
            overrides["spark.conf.spark.executorEnv.TIDEGATE_FAILPOINT"] = failpoint
        opening = Opening(bench.root, sync.name, self._batch_rows, overrides, bench.profile)
        log = bench.logs / "prove.log"
        return PipelineProcess(opening, log, failpoint, bench.environment())

    def _overrides(self) -> dict[str, Any]:
        bench, sync = self._bench, self._bench.sync
        conninfo = bench.databases.conninfo
        target: Any = conninfo(self.target)
        if bench.is_lake:
            target = embedded_lake(bench.databases.folder(self._control))
        return {
            **bench.overrides,
            f"connections.{sync.source.connection}": conninfo(self.source),
            f"connections.{sync.target.connection}": target,
            "project.control": conninfo(self._control),
            "worker.max_attempts": _MAX_ATTEMPTS,
        }

    def run(self) -> Ended:
        """One run, in the process of the last one unless a kill came between.

        A failure that nobody caused is an error.
        """
        if self._runner is None:
            self._runner = self.start()
        return _must_work(self._runner.run())

    def trace(self, path: Path) -> Ended:
        """One run that writes down the points it passes."""
        with self.start(f"*=trace:{path}") as process:
            return _must_work(process.run())

    def kill(self, point: str) -> bool:
        """A run that is killed at a point; False when it came to its end without passing it.

        Some points are passed in Spark's workers: the worker dies, and the run fails of it.
        """
        self._end_runner()
        flag = self._bench.logs / "prove.killed"
        flag.unlink(missing_ok=True)
        with self.start(f"{point}=kill:{flag}") as process:
            ended = process.run()
        killed = flag.exists()
        flag.unlink(missing_ok=True)
        if not killed:
            _must_work(ended)
        return killed

    def content(self, key: Sequence[str], columns: Sequence[str] | None = None) -> TableContent:
        if self._bench.is_lake:
            return self._look().content(key, columns)
        with self._bench.databases.connect(self.target) as connection:
            return target_content(connection, self._bench.sync.target.relation, key, columns)

    def leftovers(self) -> list[str]:
        """What a run to the end has left of those that were killed before it."""
        return self._look().leftovers() if self._bench.is_lake else []

    def close(self) -> None:
        self._end_runner()
        if self._lake is not None:
            self._lake.context.databases.close()
        self._bench.databases.drop(*self._made)

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> LakeTrial:
        if self._lake is None:
            settings = load_settings(
                self._bench.root, profile=self._bench.profile, overrides=self._overrides()
            )
            self._lake = LakeTrial(Context(settings), self._bench.sync)
        return self._lake

    def _end_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def _must_work(ended: Ended) -> Ended:
    if ended.killed:
        raise TidegateError(
            "a run was killed by somebody else",
            "was the machine out of memory? lower --rows, or stop other programs",
        )
    if ended.status == "failed":
        raise RunFailed(ended)
    return ended


def trace_points(trial: Trial, trace: Path) -> tuple[str, ...]:
    """Run once without a kill; the points that the run passed, in their order."""
    trace.parent.mkdir(parents=True, exist_ok=True)
    trace.unlink(missing_ok=True)
    trial.trace(trace)
    passed = set(trace.read_text(encoding="utf-8").split()) if trace.exists() else set()
    trace.unlink(missing_ok=True)
    return tuple(point for point in POINTS if point in passed)


def spread(points: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Which points are killed at in which round; inside a round in the order of a run.

    The later a point, the more it leaves done: killed in this order, each run finds work to do.
    """
    plan: list[list[str]] = [[] for _ in range(rounds)]
    for number, point in enumerate(points):
        plan[(number + seed) % rounds].append(point)
    return [sorted(some, key=POINTS.index) for some in plan]


# Enough for one clean pass to be one batch.
_ONE_BATCH = 10_000_000
_BATCHES_PER_STEP = 3


class TrialRuns:
    """Makes trials and counts the runs that they take."""

    def __init__(self, bench: TrialSetup, pool: SourceCopy) -> None:
        self.bench = bench
        self.pool = pool
        self.runs = 0
        self._expected: TableContent | None = None

    @property
    def transformed(self) -> bool:
        return self.bench.sync.transform is not None

    @property
    def key(self) -> tuple[str, ...]:
        return self.pool.key if rule_of(self.bench.sync).keyed else ()

    def first_pass(self) -> tuple[str, ...]:
        """One clean pass over everything: the oracle, and the points that a run passes."""
        with self._final_source() as (trial, source):
            self.runs += 1
            passed = trace_points(trial, self.bench.logs / "prove.trace")
            self._expected = self._judge(trial, source)
        return passed

    def clean_pass(self, places: Sequence[int] | None = None) -> TableContent:
        """What one clean pass leaves in the target, run anew."""
        with self._final_source(places) as (trial, _):
            self.runs += 1
            trial.run()
            return trial.content(self.key)

    def expected(self, places: Sequence[int] | None = None) -> TableContent:
        """What the target must hold in the end."""
        if places is None:
            assert self._expected is not None
            return self._expected
        if needs_clean_pass(self.bench.sync):
            return self.clean_pass(places)
        with self._final_source(places) as (trial, source):
            return self._judge(trial, source)

    def compare_replay(
        self, points: Sequence[str], places: Sequence[int] | None
    ) -> ContentDifference:
        """Replay with these kills, or with none, and compare."""
        expected = self.expected(places)
        with self.replaying(places) as replay:
            for number, chosen in enumerate(spread(points, len(replay.steps), 0)):
                replay.step(number)
                for point in chosen:
                    replay.kill(point)
                replay.run()
            return replay.difference(expected)

    def collapsed(self) -> int:
        """How many rows a key that is not unique would swallow."""
        with self._final_source() as (_, source):
            content = expected_content(source, self.bench.sync, self.pool.table, self.pool.key)
        return content.total - len(content.rows)

    @contextmanager
    def replaying(self, places: Sequence[int] | None = None) -> Iterator[Replay]:
        databases = self.bench.databases
        name = self.pool.make_source(places)
        rows = self.pool.rows if places is None else len(places)
        with databases.connect(name) as source:
            steps = self.pool.step_numbers(source)
            batch_rows = max(1, rows // (len(steps) * _BATCHES_PER_STEP))
            with Trial(self.bench, name, batch_rows) as trial:
                yield Replay(self, trial, source, steps)
        databases.drop(name)

    @contextmanager
    def _final_source(
        self, places: Sequence[int] | None = None
    ) -> Iterator[tuple[Trial, Connection]]:
        databases = self.bench.databases
        name = self.pool.make_source(places)
        with databases.connect(name) as source:
            self.pool.apply_all(source)
            with Trial(self.bench, name, _ONE_BATCH) as trial:
                yield trial, source
        databases.drop(name)

    def _judge(self, trial: Trial, source: Connection) -> TableContent:
        """The oracle: a clean pass of the transformation, or plain SQL where there is none."""
        if needs_clean_pass(self.bench.sync):
            return trial.content(self.key)
        return expected_content(source, self.bench.sync, self.pool.table, self.key)


@dataclass(slots=True)
class Replay:
    """One replay of the history: step, kill, run, compare."""

    workshop: TrialRuns
    trial: Trial
    source: Connection
    steps: list[int]

    def step(self, number: int) -> None:
        self.workshop.pool.apply(self.source, self.steps[number])

    def kill(self, point: str) -> bool:
        """A run that dies at the point; False when it came to its end without passing it."""
        self.workshop.runs += 1
        return self.trial.kill(point)

    def run(self) -> None:
        self.workshop.runs += 1
        self.trial.run()

    def difference(self, expected: TableContent | None = None) -> ContentDifference:
        """The target in the end against the oracle."""
        wanted = expected if expected is not None else self.workshop.expected()
        return compare(wanted, self.trial.content(self.workshop.key, wanted.columns))

    def leftovers(self) -> list[str]:
        """What is left of killed runs after one that came to its end."""
        return self.trial.leftovers()

    def difference_so_far(self) -> ContentDifference:
        """The target now against the source now; only SQL can tell that halfway."""
        workshop = self.workshop
        if needs_clean_pass(workshop.bench.sync):
            return ContentDifference()
        expected = expected_content(
            self.source, workshop.bench.sync, workshop.pool.table, workshop.key
        )
        return compare(expected, self.trial.content(workshop.key, expected.columns))
