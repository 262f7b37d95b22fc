"""Trials of one sync over the sample or a part of it: clean passes and replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tidegate.postgres.connect import Connection
from tidegate.testing.oracle import (
    Content,
    Difference,
    compare,
    expected_content,
    needs_clean_pass,
    rule_of,
)
from tidegate.testing.pool import Pool
from tidegate.testing.trial import Bench, Trial, spread, trace_points

# Enough for one clean pass to be one batch.
_ONE_BATCH = 10_000_000
_BATCHES_PER_STEP = 3


class Workshop:
    """Makes trials and counts the runs that they take."""

    def __init__(self, bench: Bench, pool: Pool) -> None:
        self.bench = bench
        self.pool = pool
        self.runs = 0
        self._expected: Content | None = None

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

    def clean_pass(self, places: Sequence[int] | None = None) -> Content:
        """What one clean pass leaves in the target, run anew."""
        with self._final_source(places) as (trial, _):
            self.runs += 1
            trial.run()
            return trial.content(self.key)

    def expected(self, places: Sequence[int] | None = None) -> Content:
        """What the target must hold in the end."""
        if places is None:
            assert self._expected is not None
            return self._expected
        if needs_clean_pass(self.bench.sync):
            return self.clean_pass(places)
        with self._final_source(places) as (trial, source):
            return self._judge(trial, source)

    def compare_replay(self, points: Sequence[str], places: Sequence[int] | None) -> Difference:
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

    def _judge(self, trial: Trial, source: Connection) -> Content:
        """The oracle: a clean pass of the transformation, or plain SQL where there is none."""
        if needs_clean_pass(self.bench.sync):
            return trial.content(self.key)
        return expected_content(source, self.bench.sync, self.pool.table, self.key)


@dataclass(slots=True)
class Replay:
    """One replay of the history: step, kill, run, compare."""

    workshop: Workshop
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

    def difference(self, expected: Content | None = None) -> Difference:
        """The target in the end against the oracle."""
        wanted = expected if expected is not None else self.workshop.expected()
        return compare(wanted, self.trial.content(self.workshop.key, wanted.columns))

    def leftovers(self) -> list[str]:
        """What is left of killed runs after one that came to its end."""
        return self.trial.leftovers()

    def difference_so_far(self) -> Difference:
        """The target now against the source now; only SQL can tell that halfway."""
        workshop = self.workshop
        if needs_clean_pass(workshop.bench.sync):
            return Difference()
        expected = expected_content(
            self.source, workshop.bench.sync, workshop.pool.table, workshop.key
        )
        return compare(expected, self.trial.content(workshop.key, expected.columns))
