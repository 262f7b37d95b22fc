"""Proving a sync: its real pipeline is killed at every commit point and compared with an oracle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

from tidegate.config.sync import Sync
from tidegate.core.errors import UsageError
from tidegate.core.failpoints import POINTS
from tidegate.load.sources.resolve import nearest
from tidegate.project import Project
from tidegate.testing.diagnosis import Diagnosis
from tidegate.testing.oracle import ContentDifference, trial_conf
from tidegate.testing.pipeline_process import start_warm_spark
from tidegate.testing.replay import MAX_ROWS
from tidegate.testing.report import Kill, Proof
from tidegate.testing.sample import SampleSize
from tidegate.testing.sandbox import FreshDatabases
from tidegate.testing.source_copy import fill_pool
from tidegate.testing.trial import RunFailed, TrialRuns, TrialSetup, spread

NO_POINT = "none"


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """What the caller of a proof may ask for."""

    rows: int = 1_000
    seed: int = 0
    points: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    keep: bool = False


class Watcher(Protocol):
    """Who is told how far a proof is."""

    def begin(self, text: str, total: int | None = None) -> None: ...

    def advance(self, text: str) -> None: ...


def prove_sync(
    project: Project,
    name: str,
    options: ProofOptions,
    watcher: Watcher,
    overrides: dict[str, Any] | None = None,
) -> Proof:
    """Prove one sync on the project's embedded server, which is stopped again if it was."""
    sync = project.sync(name)
    _check(sync, options)
    server = project.context.databases.embedded
    was_running = server.is_running()
    server.start()
    conf = partial(trial_conf, project.context)
    try:
        databases = FreshDatabases(server, keep=options.keep)
        try:
            bench = TrialSetup(
                databases=databases,
                root=project.settings.root,
                sync=sync,
                logs=project.settings.state_directory / "logs",
                overrides=overrides or {},
                profile=project.settings.profile,
                is_lake=project.context.is_lake(sync.target.connection),
                environment=cache(partial(start_warm_spark, project.settings, conf)),
            )
            proof = _Proving(project, bench, options, watcher).prove()
        finally:
            kept = databases.close()
        proof.kept = kept
        return proof
    finally:
        project.context.databases.close()
        if not was_running and not options.keep:
            server.stop()


def _check(sync: Sync, options: ProofOptions) -> None:
    for point in options.points:
        if point not in POINTS and point != NO_POINT:
            raise UsageError(f"there is no point {point}", nearest(point, [*POINTS, NO_POINT]))
    if not 1 <= options.rows <= MAX_ROWS:
        raise UsageError(f"--rows {options.rows} is out of range", f"give 1 to {MAX_ROWS:,}")


class _Proving:
    def __init__(
        self, project: Project, bench: TrialSetup, options: ProofOptions, watcher: Watcher
    ) -> None:
        self._project = project
        self._bench = bench
        self._options = options
        self._watcher = watcher
        self._proof = Proof(
            bench.sync.name, options.seed, transformed=bench.sync.transform is not None
        )

    def prove(self) -> Proof:
        started = time.monotonic()
        proof, options = self._proof, self._options
        self._watcher.begin(f"{proof.sync}: reading a sample of {self._bench.sync.source}")
        pool = fill_pool(
            self._project.context,
            self._bench.sync,
            self._bench.databases,
            SampleSize(options.rows, options.seed, options.keys),
        )
        proof.rows, proof.notes = pool.rows, [*pool.notes, *self._lake_notes()]
        workshop = TrialRuns(self._bench, pool)
        diagnosis = Diagnosis(workshop, options.seed, self._watcher.advance)
        try:
            self._try(workshop, diagnosis)
        finally:
            proof.runs = workshop.runs
            proof.seconds = time.monotonic() - started
        return proof

    def _try(self, workshop: TrialRuns, diagnosis: Diagnosis) -> None:
        proof = self._proof
        proof.finding = diagnosis.check_key()
        if proof.finding is not None:
            proof.lost = workshop.collapsed()
            return
        self._watcher.begin(f"{proof.sync}: {proof.rows:,} rows, one clean pass")
        try:
            passed = workshop.first_pass()
        except RunFailed as error:
            proof.finding = diagnosis.explain_failure(error)
            return
        points = self._points(passed)
        difference, left = self._replay(workshop, points)
        if isinstance(difference, RunFailed):
            proof.finding = diagnosis.explain_failure(difference)
            return
        if difference:
            self._watcher.begin(f"{proof.sync}: {difference}; looking for the smallest case")
            proof.finding, note = diagnosis.explain(difference, points)
            proof.notes += [note] if note else []
        if proof.finding is not None:
            proof.lost, proof.doubled = len(difference.lost), len(difference.doubled)
            proof.different, proof.extra = len(difference.different), len(difference.extra)
            self._blame(proof.finding.point)
        elif left:
            proof.finding = diagnosis.explain_left(left)

    def _lake_notes(self) -> list[str]:
        name = self._bench.sync.target.connection
        if not self._bench.is_lake or self._project.context.catalog(name).is_embedded:
            return []
        return [f'the proof has a lake of its own; the catalog of "{name}" is left alone']

    def _points(self, passed: Sequence[str]) -> list[str]:
        wanted = self._options.points
        for point in wanted:
            if point != NO_POINT and point not in passed:
                self._proof.notes.append(f"a run of {self._proof.sync} does not pass {point}")
        return [point for point in passed if not wanted or point in wanted]

    def _replay(
        self, workshop: TrialRuns, points: Sequence[str]
    ) -> tuple[ContentDifference | RunFailed, list[str]]:
        """How the rows differ in the end, and what lies around them."""
        proof = self._proof
        with workshop.replaying() as replay:
            proof.steps = len(replay.steps)
            plan = spread(points, len(replay.steps), proof.seed)
            self._watcher.begin(
                f"{proof.sync}: {proof.rows:,} rows in {proof.steps} steps,"
                f" killed at {len(points)} points",
                len(points) + len(plan),
            )
            try:
                for number, chosen in enumerate(plan):
                    replay.step(number)
                    for point in chosen:
                        self._kill(replay.kill, point, number + 1)
                    replay.run()
                    self._watcher.advance(f"step {number + 1}: run to the end")
                    difference = replay.difference_so_far()
                    if difference:
                        break
                return difference or replay.difference(), replay.leftovers()
            except RunFailed as error:
                return error, []

    def _kill(self, kill: Any, point: str, step: int) -> None:
        started = time.monotonic()
        killed = kill(point)
        seconds = time.monotonic() - started
        self._proof.kills.append(Kill(point, step, killed, seconds))
        happened = "killed" if killed else "not reached"
        self._watcher.advance(f"step {step}: {happened} at {point}, {seconds:.1f} s")

    def _blame(self, point: str | None) -> None:
        """Mark the kill that the finding names; a finding without a kill marks none."""
        self._proof.kills = [
            Kill(kill.point, kill.step, kill.killed, kill.seconds, ok=kill.point != point)
            for kill in self._proof.kills
        ]
