"""What a test can assert of a pipeline: that it may be repeated, and that it may be killed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidegate.config.sync import Sync
from tidegate.core.errors import UsageError
from tidegate.core.failpoints import POINTS
from tidegate.core.relation import Table
from tidegate.load.sources.resolve import nearest, resolve_source
from tidegate.project import Project
from tidegate.testing.oracle import (
    ContentDifference,
    LakeTrial,
    TableContent,
    compare,
    expected_content,
    needs_clean_pass,
    rule_of,
    target_content,
)
from tidegate.testing.pipeline_process import lend_spark
from tidegate.testing.sandbox import SandboxProject
from tidegate.testing.trial import Trial, TrialSetup, trace_points

_ONE_BATCH = 10_000_000
_BATCHES = 6
_SHOWN = 5


def assert_idempotent(project: Project, name: str) -> None:
    """Run, run again, load everything anew: the target must stay what it was.

    >>> assert_idempotent(tidegate_project, "orders")                # doctest: +SKIP
    """
    sandbox = _sandbox(project, "assert_idempotent")
    sync = sandbox.sync(name)
    key = _source_of(sandbox, sync)[1]
    sandbox.run(name)
    first = _target(sandbox, sync, key)
    if not first.rows:
        raise AssertionError(f"{name} loaded no rows, which proves nothing: fill its source first")
    sandbox.run(name)
    _require_same(
        first, _target(sandbox, sync, key), key, f"{name}: a second run changed the target"
    )
    sandbox.run(name, full_refresh=True)
    again = _target(sandbox, sync, key)
    _require_same(first, again, key, f"{name}: loaded anew, the same rows give another target")


def assert_crash_safe(project: Project, name: str, points: Sequence[str] | None = None) -> int:
    """Kill the pipeline at every commit point, run it again, and compare with a clean run.

    It runs in processes and databases of its own, over the rows that the project's source holds
    now. Returns how many kills took place.

    >>> assert_crash_safe(tidegate_project, "orders")                # doctest: +SKIP
    """
    sandbox = _sandbox(project, "assert_crash_safe")
    for point in points or ():
        if point not in POINTS:
            raise UsageError(f"there is no point {point}", nearest(point, POINTS))
    sync = sandbox.sync(name)
    table, key = _source_of(sandbox, sync)
    context = sandbox.context
    with lend_spark(context.spark, sandbox.settings, context.lake_conf) as environment:
        bench = TrialSetup(
            databases=sandbox.databases,
            root=sandbox.settings.root,
            sync=sync,
            logs=sandbox.settings.state_directory / "logs",
            overrides=sandbox.overrides,
            profile=sandbox.settings.profile,
            is_lake=context.is_lake(sync.target.connection),
            environment=lambda: environment,
        )
        return _Crashes(sandbox, bench, table, key).prove(points)


class _Crashes:
    def __init__(
        self, project: SandboxProject, bench: TrialSetup, table: Table, key: tuple[str, ...]
    ) -> None:
        self._project = project
        self._bench = bench
        self._table = table
        self._key = key

    def prove(self, points: Sequence[str] | None) -> int:
        sync = self._bench.sync
        with (
            self._source() as (name, source_rows),
            Trial(self._bench, name, _ONE_BATCH) as clean,
        ):
            passed = trace_points(clean, self._bench.logs / "prove.trace")
            expected = self._expected(clean, name)
        if not expected.rows:
            raise AssertionError(
                f"{sync.name} loaded no rows, which proves nothing: fill its source first"
            )
        chosen = [point for point in POINTS if point in (points or passed)]
        with (
            self._source() as (name, _),
            Trial(self._bench, name, max(1, source_rows // _BATCHES)) as killed,
        ):
            kills = sum(killed.kill(point) for point in chosen)
            killed.run()
            found = killed.content(self._key, expected.columns)
            left = killed.leftovers()
        difference = compare(expected, found)
        if difference:
            raise AssertionError(self._message(difference, expected, chosen))
        if left:
            raise AssertionError(f"{sync.name}: killed and run again, it leaves {', '.join(left)}")
        return kills

    def _message(
        self, difference: ContentDifference, expected: TableContent, points: Sequence[str]
    ) -> str:
        sync = self._bench.sync
        if sync.transform is not None:
            with (
                self._source() as (name, _),
                Trial(self._bench, name, _ONE_BATCH) as again,
            ):
                again.run()
                second = compare(expected, again.content(self._key, expected.columns))
            if second:
                return (
                    f"{sync.name}: the transformation is not deterministic: two clean runs give "
                    f"{_named(second, self._key)}"
                )
        kills = ", ".join(points)
        return f"{sync.name}: killed at {kills} and run again: {_named(difference, self._key)}"

    def _expected(self, clean: Trial, source: str) -> TableContent:
        if needs_clean_pass(self._bench.sync):
            return clean.content(self._key)
        with self._bench.databases.connect(source) as connection:
            return expected_content(connection, self._bench.sync, self._table, self._key)

    @contextmanager
    def _source(self) -> Iterator[tuple[str, int]]:
        """The source's database, and how many rows the table has.

        Where the target is in the same database, each trial gets a copy of it.
        """
        from psycopg import errors, sql

        from tidegate.postgres.queries import qualified

        sync, databases = self._bench.sync, self._bench.databases
        name = self._project.database_names[sync.source.connection]
        with databases.connect(name) as connection:
            row: Any = connection.execute(
                sql.SQL("SELECT count(*) FROM {}").format(qualified(self._table.relation))
            ).fetchone()
        if sync.source.connection != sync.target.connection:
            yield name, row[0]
            return
        self._project.context.databases.close()
        try:
            copy = databases.make("source", template=name)
        except errors.ObjectInUse:
            raise UsageError(
                f'connection "{sync.source.connection}" is in use, and its database cannot be '
                "copied meanwhile",
                "close your sessions on it before assert_crash_safe",
            ) from None
        with databases.connect(copy) as connection:
            connection.execute(
                sql.SQL("DROP TABLE IF EXISTS {}; DROP SCHEMA IF EXISTS {} CASCADE").format(
                    qualified(sync.target.relation),
                    sql.Identifier(self._project.settings.ledger.schema_name),
                )
            )
        yield copy, row[0]
        databases.drop(copy)


def _sandbox(project: Project, what: str) -> SandboxProject:
    if not isinstance(project, SandboxProject):
        raise UsageError(
            f"{what} runs the pipeline again and again, and this project's databases are real",
            "give it the project of the fixture tidegate_project",
        )
    return project


def _source_of(project: SandboxProject, sync: Sync) -> tuple[Table, tuple[str, ...]]:
    with project.connect(sync.source.connection) as connection:
        source = resolve_source(connection, sync)
    return source.table, tuple(source.key) if rule_of(sync).keyed else ()


def _target(project: SandboxProject, sync: Sync, key: tuple[str, ...]) -> TableContent:
    if project.context.is_lake(sync.target.connection):
        return LakeTrial(project.context, sync).content(key)
    with project.connect(sync.target.connection) as connection:
        return target_content(connection, sync.target.relation, key)


def _require_same(
    before: TableContent, after: TableContent, key: tuple[str, ...], what: str
) -> None:
    difference = compare(before, after)
    if difference:
        raise AssertionError(f"{what}: {_named(difference, key)}")


def _named(difference: ContentDifference, key: tuple[str, ...]) -> str:
    rows = [
        ", ".join(f"{name}={value}" for name, value in zip(key, values, strict=True))
        for values in dict.fromkeys(difference.keys)
        if len(values) == len(key)
    ]
    shown = "; ".join(rows[:_SHOWN]) + (" …" if len(rows) > _SHOWN else "")
    columns = f", in {', '.join(difference.columns)}" if difference.columns else ""
    return f"{difference}{columns}" + (f" ({shown})" if shown else "")
