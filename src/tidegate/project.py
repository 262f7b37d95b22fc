"""A project: a folder with tidegate.toml, opened."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.declare import collect
from tidegate.errors import DeclarationError, SettingsError, UsageError
from tidegate.insight.markers import Marker
from tidegate.insight.watermarks import SyncWatermark
from tidegate.model.cursor import NullPolicy
from tidegate.model.load import LoadResult
from tidegate.model.publish import Publish, PublishReport
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.rules import Check, Duplicates, Mode, Rules
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import nearest
from tidegate.postgres.connect import Connection
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.runner import Runner, RunOptions, RunReport
from tidegate.settings import Settings, SyncSettings, find_project, load_settings
from tidegate.settings.publish import read_publish
from tidegate.spark.frame import require_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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

    def publish(
        self,
        df: DataFrame,
        *,
        target: str,
        update_id: str,
        key: str | Sequence[str] | None = None,
        cursor: str | None = None,
        mode: str = "merge",
        duplicates: str = "refuse",
        checks: Mapping[str, str] | None = None,
        reject_limit: float | str | None = None,
        before_sql: str | Sequence[str] | None = None,
        after_sql: str | Sequence[str] | None = None,
        partitions: int | None = None,
        wait: str | float | None = None,
    ) -> PublishReport:
        """Put the rows of a DataFrame into a table, once; see `tidegate.publish`."""
        given = {name: value for name, value in locals().items() if name not in ("self", "df")}
        frame, values = require_frame(df), read_publish(given)
        publish = Publish(
            target=Endpoint.parse(values.target),
            update_id=values.update_id,
            key=values.key,
            cursor=values.cursor,
            rules=Rules(
                mode=Mode(values.mode),
                duplicates=Duplicates(values.duplicates),
                before_sql=values.before_sql,
                after_sql=values.after_sql,
                checks=tuple(Check(*one) for one in values.checks.items()),
                reject_limit=values.reject_limit,
            ),
            partitions=values.partitions,
        )
        self.settings.connection(publish.target.connection)
        return Publisher(self.context).publish(frame, publish, wait_seconds=values.wait_seconds)

    def connect(self, connection: str) -> Connection:
        """A session on one of the project's databases, for work of your own."""
        return self.context.databases.connect(connection)

    def marker(self, target: str, *, update_id: str) -> Marker:
        """The marker of a load of your own: `exists()` before it, `touch(connection)` in it."""
        return Marker(self.context, Endpoint.parse(target), update_id)

    def watermark(self, name: str) -> SyncWatermark:
        """The watermark of a sync, to read, set or rewind."""
        return SyncWatermark(self.context, self.sync(name))

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


def publish(
    df: DataFrame,
    *,
    target: str,
    update_id: str,
    project: Project | str | Path | None = None,
    key: str | Sequence[str] | None = None,
    cursor: str | None = None,
    mode: str = "merge",
    duplicates: str = "refuse",
    checks: Mapping[str, str] | None = None,
    reject_limit: float | str | None = None,
    before_sql: str | Sequence[str] | None = None,
    after_sql: str | Sequence[str] | None = None,
    partitions: int | None = None,
    wait: str | float | None = None,
) -> PublishReport:
    """Put the rows of a DataFrame into a table, once: the whole publish in one line of any job.

    A second call with the same update_id does nothing, and does not compute the DataFrame.

    >>> import tidegate as tg                                        # doctest: +SKIP
    >>> tg.publish(df, target="warehouse:marts.revenue", key="day",  # doctest: +SKIP
    ...            update_id="revenue-2026-11-01")
    """
    given = {name: value for name, value in locals().items() if name not in ("df", "project")}
    if isinstance(project, Project):
        return project.publish(df, **given)
    folder = project or os.environ.get("TIDEGATE_PROJECT_DIR") or "."
    with Project.open(folder) as opened:
        return opened.publish(df, **given)


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
