"""A project: a folder with tidegate.toml, opened."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tidegate.declare import collect
from tidegate.errors import DeclarationError, SettingsError, UsageError
from tidegate.insight.adoption import examine, record_adoption
from tidegate.insight.markers import Marker
from tidegate.insight.superseded import (
    Vacuumed,
    count_superseded,
    find_versions,
    remove_superseded,
)
from tidegate.insight.watermarks import SyncWatermark
from tidegate.insight.why import explain_row, find_sync
from tidegate.model.adoption import Adoption, StartingPoint
from tidegate.model.cursor import NullPolicy
from tidegate.model.explanation import Explanation
from tidegate.model.job import SYNC, VACUUM
from tidegate.model.load import LoadResult
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.rules import Check, Duplicates, Mode
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import nearest
from tidegate.postgres.connect import Connection
from tidegate.runtime.hold import hold_table
from tidegate.runtime.many import ManyReport, SyncEnd, run_many
from tidegate.runtime.runner import Runner, RunOptions, RunReport
from tidegate.settings import Settings, SyncSettings, find_project, load_settings


class Project:
    """An opened project: its syncs, databases, markers and watermarks.

    >>> project = Project.open(".")                                  # doctest: +SKIP
    >>> project.run("orders").rows                                   # doctest: +SKIP
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = Context(settings)
        self._syncs: dict[str, Sync] | None = None

    @classmethod
    def open(
        cls, path: str | Path = ".", *, profile: str | None = None, **overrides: Any
    ) -> Project:
        """Open the project in `path`, or in the nearest folder above it."""
        return cls(load_settings(find_project(Path(path)), profile=profile, overrides=overrides))

    @property
    def name(self) -> str:
        return self.settings.project.name

    @property
    def syncs(self) -> dict[str, Sync]:
        """Every declared sync by name, from tidegate.toml and from the pipelines file."""
        if self._syncs is None:
            self._syncs = self._declared()
        return self._syncs

    def sync(self, name: str) -> Sync:
        """One declared sync; an unknown name is refused with the nearest right one."""
        try:
            return self.syncs[name]
        except KeyError:
            raise UsageError(f"there is no sync {name}", nearest(name, self.syncs)) from None

    def run(
        self,
        name: str,
        *,
        full_refresh: bool = False,
        max_batches: int | None = None,
        take_over: bool = False,
        step: Callable[[Sync, LoadResult], None] | None = None,
    ) -> RunReport:
        """Run a sync to its horizon, here and now."""
        options = RunOptions(full_refresh, max_batches, take_over)
        return Runner(self.context, step=step).run(self.sync(name), options)

    def run_many(
        self,
        names: Sequence[str] | None = None,
        *,
        full_refresh: bool = False,
        max_batches: int | None = None,
        take_over: bool = False,
        concurrency: int | None = None,
        step: Callable[[Sync, LoadResult], None] | None = None,
        ended: Callable[[SyncEnd], None] | None = None,
    ) -> ManyReport:
        """Run several syncs, or all of them, side by side; failures are in the report."""
        chosen = [self.sync(name) for name in (self.syncs if names is None else names)]
        return run_many(
            self.context,
            chosen,
            RunOptions(full_refresh, max_batches, take_over),
            concurrency=concurrency or self.settings.worker.concurrency,
            step=step,
            ended=ended,
        )

    def connect(self, connection: str) -> Connection:
        """A session on one of the project's databases, for work of your own."""
        return self.context.databases.connect(connection)

    def marker(self, target: str, *, update_id: str) -> Marker:
        """The marker of a load of your own: `exists()` before it, `touch(connection)` in it."""
        return Marker(self.context, Endpoint.parse(target), update_id)

    def watermark(self, name: str) -> SyncWatermark:
        """The watermark of a sync, to read, set or rewind."""
        return SyncWatermark(self.context, self.sync(name))

    def adopt(
        self,
        name: str,
        *,
        at: object | None = None,
        from_target_max: bool = False,
        back: str | None = None,
        take_over: bool = False,
        dry_run: bool = False,
    ) -> Adoption:
        """Take over a target table that is filled already; the next run goes on from there."""
        sync = self.sync(name)
        point = StartingPoint(None if at is None else str(at), from_target_max, back)
        found = examine(self.context, sync, point, take_over=take_over)
        if dry_run:
            return found
        result: dict[str, Any] = {
            "adopted": True,
            "adopted_rows": found.rows,
            "loads": 0,
            "rows": 0,
            "changed": 0,
            "found_nothing": False,
            "watermark": found.watermark,
            "horizon": None,
            "fingerprints": {},
        }
        request = {"kind": SYNC, "name": sync.name}
        with hold_table(
            self.context,
            sync.target,
            request,
            result=result,
            command="tidegate adopt",
            take_over=take_over,
        ) as held:
            return record_adoption(self.context, sync, found, held.fence)

    def why(self, target: str, /, *, run_transform: bool = False, **key: object) -> Explanation:
        """Why the row with this key is as it is: `project.why("warehouse:raw.orders", id=42)`."""
        return self.explain(target, key, run_transform=run_transform)

    def explain(
        self, target: str, key: Mapping[str, Any], *, run_transform: bool = False
    ) -> Explanation:
        """The same as `why`, for columns of any name."""
        sync = find_sync(self.syncs, target)
        return explain_row(self.context, sync, key, run_transform=run_transform)

    def vacuum(self, name: str, *, dry_run: bool = False) -> Vacuumed:
        """Remove the superseded versions that append with a key has kept."""
        sync = self.sync(name)
        versions = find_versions(self.context, sync)
        if isinstance(versions, str):
            return Vacuumed(sync.name, str(sync.target), dry_run=dry_run, note=versions)
        if dry_run:
            return count_superseded(self.context, versions)
        # Of a kind of its own: what the last run remembered stays what the next one needs.
        request = {"kind": VACUUM, "name": sync.name}
        result: dict[str, Any] = {}
        with hold_table(
            self.context, sync.target, request, result=result, command="tidegate vacuum"
        ) as held:
            found = remove_superseded(self.context, versions, held.fence, held.check_alive)
            result.update(removed_versions=found.rows, removed_bytes=found.bytes)
            return found

    def close(self) -> None:
        """Stop Spark if this project started it, and close its sessions."""
        self.context.spark.stop()
        self.context.databases.close()

    def __enter__(self) -> Project:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _declared(self) -> dict[str, Sync]:
        found = {
            name: self._make(name, values, None) for name, values in self.settings.sync.items()
        }
        for declared in self._pipelines():
            if declared.name in found:
                raise DeclarationError(
                    f"sync {declared.name} is declared twice: in tidegate.toml or in "
                    f"{self.settings.project.pipelines}, and again in the latter",
                    "give one of them another name",
                )
            values = self.settings.make_sync(
                declared.name, declared.values, self.settings.project.pipelines
            )
            found[declared.name] = self._make(declared.name, values, declared.function)
        return found

    def _make(self, name: str, values: SyncSettings, transform: Any) -> Sync:
        target = Endpoint.parse(values.target)
        source = (
            Endpoint.parse(values.source)
            if values.query is None
            else Endpoint(values.source, Relation("(query)", name))
        )
        for endpoint in (source, target):
            if endpoint.connection not in self.settings.connections:
                self.settings.connection(endpoint.connection)
        return Sync(
            project=self.name,
            name=name,
            source=source,
            target=target,
            mode=Mode(values.mode),
            key=values.key,
            cursor=values.cursor,
            changes=values.changes,
            lookback=values.lookback,
            settle_seconds=values.settle_seconds,
            null_cursor=None if values.null_cursor is None else NullPolicy(values.null_cursor),
            cursor_timezone=values.cursor_timezone,
            duplicates=Duplicates(values.duplicates),
            batch_rows=values.batch_rows,
            partitions=values.partitions,
            schedule=values.schedule,
            columns=values.columns,
            exclude_columns=values.exclude_columns,
            where=values.where,
            query=values.query,
            before_sql=values.before_sql,
            after_sql=values.after_sql,
            checks=tuple(Check(*one) for one in values.checks.items()),
            reject_limit=values.reject_limit,
            transform=transform,
        )

    def _pipelines(self) -> Iterable[Any]:
        file = self.settings.pipelines_file
        if not file.exists():
            return []
        return collect(lambda: _import_file(file))


def _import_file(file: Path) -> None:
    """Run a Python file as a module of its own name, so that its functions can be shipped."""
    specification = importlib.util.spec_from_file_location(f"tidegate_project_{file.stem}", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    folder = str(file.parent)
    sys.path.insert(0, folder)
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        line = error.__traceback__
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        where = f" (line {line.tb_lineno})" if line is not None else ""
        raise SettingsError(
            f"{file.name}{where} cannot be read: {type(error).__name__}: {error}",
            "correct it and try again",
        ) from error
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)
