"""A project: a folder with tidegate.toml, opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.admin.adopt import examine_table, record_adoption
from tidegate.admin.adopted_table import Adoption, StartingPoint
from tidegate.admin.marker import Marker, forget_task
from tidegate.admin.watermark import SyncWatermark
from tidegate.config import Settings, find_project, load_settings
from tidegate.config.keywords import read_publish
from tidegate.config.sync import Duplicates, Group, Mode, RemovalLimit, RowCheck, Rules, Sync
from tidegate.config.task import Step, Task, TaskRun
from tidegate.core.batch import LoadResult
from tidegate.core.errors import UsageError
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.units import parse_duration
from tidegate.declarations import Declarations, read_declarations
from tidegate.events.model import PHASES, Phase
from tidegate.events.project_events import ProjectEvents, find_events
from tidegate.events.runner import (
    COMMAND as EVENT_COMMAND,
)
from tidegate.events.runner import (
    EventOptions,
    EventReport,
    EventRunner,
    prepare_events,
    scheduled_events,
)
from tidegate.job_kinds import handlers_of
from tidegate.jobs.attempt import hold_table
from tidegate.jobs.claim import open_heartbeat
from tidegate.jobs.dependencies import Limits
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.history.query import TaskHistory
from tidegate.jobs.job import EVENT, SYNC, TASK, VACUUM, Submitted
from tidegate.jobs.loop import Loop
from tidegate.jobs.notifier import Notifier
from tidegate.jobs.queued_job import QueuedJob
from tidegate.jobs.reclaim import ADOPT
from tidegate.jobs.scheduler import Scheduler
from tidegate.jobs.schedules import Scheduled, scheduled_syncs, scheduled_tasks
from tidegate.jobs.sweeper import Sweeper
from tidegate.jobs.worker import Worker, WorkerOptions
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.load.runner import ManyReport, Runner, RunOptions, RunReport, SyncEnd, run_many
from tidegate.load.selection import SelectedSyncs, expand
from tidegate.load.sources.dataframe import Publisher, PublishReport, PublishRequest
from tidegate.load.submit import QueueOptions, prepare_syncs, submit_sync
from tidegate.maintenance.policy import PolicyRunner
from tidegate.maintenance.table_cache import Refresher, cache_written_table
from tidegate.maintenance.vacuum import (
    VacuumReport,
    count_superseded,
    find_versions,
    remove_superseded,
)
from tidegate.postgres.connection import Connection
from tidegate.spark.session import require_frame
from tidegate.tasks.graph import TaskGraph, build_graph, find_task
from tidegate.tasks.graph_runner import GraphReport, GraphRun, StepEnd
from tidegate.tasks.runner import is_complete
from tidegate.tasks.submit import QueuedStep, prepare_tasks, step_requests, submit_graph
from tidegate.verify.backfill import BackfillReport, backfill_sync
from tidegate.verify.repair import COMMAND, repair_sync
from tidegate.verify.report import Explanation, Verification
from tidegate.verify.verify import verify_sync
from tidegate.verify.why import explain_row, find_sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Project:
    """An opened project: its syncs, databases, markers and watermarks.

    >>> project = Project.open(".")                                  # doctest: +SKIP
    >>> project.run("orders").rows                                   # doctest: +SKIP
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = Context(
            settings,
            declared=lambda: read_declarations(settings).syncs,
            on_written=cache_written_table,
        )
        self._read: Declarations | None = None

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
    def names(self) -> list[str]:
        """What is declared, in order: syncs and groups, from tidegate.toml and Python."""
        return list(self._all())

    @property
    def declared(self) -> list[Sync | Group]:
        """What is declared, in order, as it was written: a group stands for its tables."""
        return list(self._all().values())

    @property
    def syncs(self) -> dict[str, Sync]:
        """Every sync of a single table by name, from tidegate.toml and from the pipelines file."""
        return {name: one for name, one in self._all().items() if isinstance(one, Sync)}

    @property
    def groups(self) -> dict[str, Group]:
        """Every declaration whose source is a pattern, by name."""
        return {name: one for name, one in self._all().items() if isinstance(one, Group)}

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task of the pipelines file, by name and in order."""
        return dict(self._declarations().tasks)

    @property
    def destinations(self) -> list[str]:
        """The connections that the project loads into."""
        targets = [one.target for one in self._all().values()]
        targets += [one.target for one in self.tasks.values() if one.target is not None]
        return list(dict.fromkeys(one.connection for one in targets))

    def sync(self, name: str, *, fresh: bool = False, from_ledger: bool = False) -> Sync:
        """One sync, `group.table` for a table of a group; unknown names get the nearest right one.

        `fresh` and `from_ledger` are those of `expand`.
        """
        if name in self.groups:
            raise UsageError(
                f"{name} is a group of tables", f"name one of them, such as {name}.TABLE"
            )
        found = self.expanded([name], fresh=fresh, from_ledger=from_ledger).syncs[0]
        if found.group is not None and found.refused is not None:
            raise found.refused
        return found

    def expand(self, names: Sequence[str] | None = None, *, fresh: bool = False) -> list[Sync]:
        """The syncs that these names mean, all of the project's without any: a group is its tables.

        Sources are asked only where a group is concerned. What is wrong with one table or group
        does not hide the others: it comes as a sync with `refused` set, and running it raises that.
        A table stays with the key and cursor it was loaded with; `fresh` proposes them anew, as a
        full refresh does.
        """
        return list(self.expanded(names, fresh=fresh).syncs)

    def expanded(
        self,
        names: Sequence[str] | None = None,
        *,
        fresh: bool = False,
        from_ledger: bool = False,
    ) -> SelectedSyncs:
        """As `expand`, with what each group leaves out and why."""
        return expand(
            self.context,
            self.names,
            self.syncs,
            self.groups,
            names,
            fresh=fresh,
            from_ledger=from_ledger,
        )

    def run(
        self,
        name: str | Sync,
        *,
        full_refresh: bool = False,
        allow_removal: bool = False,
        max_batches: int | None = None,
        take_over: bool = False,
        step: Callable[[Sync, LoadResult], None] | None = None,
    ) -> RunReport:
        """Run a sync to its horizon, here and now; `group.table` for one table of a group."""
        options = RunOptions(full_refresh, max_batches, take_over, allow_removal)
        if isinstance(name, str) and name in self.groups:
            raise UsageError(
                f"{name} is a group of tables",
                f'run one of them, such as {name}.TABLE, or all: project.run_many(["{name}"])',
            )
        sync = name if isinstance(name, Sync) else self.sync(name, fresh=full_refresh)
        with open_heartbeat(self.context, "tidegate run") as heartbeat:
            return Runner(self.context, heartbeat, step=step).run(sync, options)

    def task_run(self, name: str, parameters: Mapping[str, Any]) -> TaskRun:
        """One task with parameters from Python or JSON; what is missing or wrong is refused."""
        task = find_task(self.tasks, name)
        return task.run(task.signature.read(name, parameters))

    def run_task(self, name: str, /, **parameters: Any) -> GraphReport:
        """Run a task and what it requires that is not complete; failures are in the report."""
        return self.run_graph([self.task_run(name, parameters)])

    def forget_task(self, run: TaskRun) -> None:
        """Let a task be done again with these parameters; its rows stay until then."""
        forget_task(self.context, run)

    def task_graph(self, roots: Sequence[Step]) -> TaskGraph:
        """What these need, and which of it is complete; nothing is run."""
        self.context.control_id()
        with self.context.plane.connect() as control:
            return build_graph(
                self.tasks, roots, lambda run: is_complete(self.context, run, control)
            )

    def run_graph(
        self,
        roots: Sequence[Step] | TaskGraph,
        *,
        concurrency: int | None = None,
        started: Callable[[Step], None] = lambda _: None,
        ended: Callable[[StepEnd], None] = lambda _: None,
        heartbeat: Heartbeat | None = None,
    ) -> GraphReport:
        """Run tasks and syncs, each after what it requires; what is complete is skipped."""
        graph = roots if isinstance(roots, TaskGraph) else self.task_graph(roots)
        owned = (
            nullcontext(heartbeat) if heartbeat else open_heartbeat(self.context, "tidegate run")
        )
        with owned as beating:
            return GraphRun(
                context=self.context,
                heartbeat=beating,
                graph=graph,
                find_syncs=lambda one: self.expand([one]),
                concurrency=concurrency or self.settings.worker.concurrency,
                started=started,
                ended=ended,
            ).run()

    def run_many(
        self,
        names: Sequence[str | Sync] | None = None,
        *,
        full_refresh: bool = False,
        allow_removal: bool = False,
        max_batches: int | None = None,
        take_over: bool = False,
        concurrency: int | None = None,
        step: Callable[[Sync, LoadResult], None] | None = None,
        ended: Callable[[SyncEnd], None] | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> ManyReport:
        """Run syncs and groups, or all there are, side by side; failures are in the report."""
        chosen = [one for one in names or () if isinstance(one, Sync)]
        if names is None or len(chosen) < len(names):
            wanted = None if names is None else [one for one in names if isinstance(one, str)]
            chosen += self.expand(wanted, fresh=full_refresh)
        return run_many(
            self.context,
            chosen,
            RunOptions(full_refresh, max_batches, take_over, allow_removal),
            concurrency=concurrency or self.settings.worker.concurrency,
            step=step,
            ended=ended,
            heartbeat=heartbeat,
        )

    def submit(
        self,
        name: str | Sync,
        *,
        full_refresh: bool = False,
        allow_removal: bool = False,
        priority: int = 0,
        at: datetime | None = None,
        delay: str | float = 0.0,
        idempotency_key: str | None = None,
    ) -> QueuedJob:
        """Queue a sync for a worker; one that waits or runs already is not queued twice."""
        try:
            delay_seconds = parse_duration(delay)
        except ValueError as error:
            raise UsageError(f"delay = {delay!r}", f"expected {error}") from None
        order = QueueOptions(priority, at, delay_seconds, idempotency_key)
        sync = name if isinstance(name, Sync) else self.sync(name, fresh=full_refresh)
        submitted = submit_sync(
            self.context,
            sync,
            RunOptions(full_refresh, allow_removal=allow_removal),
            order,
            actor=f"{user_name()} (tidegate run --queue)",
        )
        assert submitted.job_id is not None
        return QueuedJob(self.context, submitted.job_id, submitted.outcome is Submitted.QUEUED)

    def submit_task(self, name: str, /, **parameters: Any) -> QueuedJob:
        """Queue a task, and before it what it requires, for workers; refused when complete."""
        run = self.task_run(name, parameters)
        queued = self.submit_graph([run])
        found = next((one for one in queued if one.step == run), None)
        if found is None:
            raise UsageError(f"task {run} is complete already", "nothing was queued")
        return QueuedJob(self.context, found.job_ids[0], found.created)

    def submit_graph(
        self, roots: Sequence[Step], order: QueueOptions | None = None
    ) -> list[QueuedStep]:
        """Queue all that is missing of a graph; each job waits for those that it requires."""
        graph = self.task_graph(roots)
        requests = step_requests(
            self.context, graph, lambda one: self.expand([one]), order or QueueOptions()
        )
        with self.context.plane.connect() as control:
            return submit_graph(
                self.context,
                control,
                graph,
                requests,
                actor=f"{user_name()} (tidegate run --queue)",
            )

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
        allow_removal: bool = False,
    ) -> PublishReport:
        """Put the rows of a DataFrame into a table, once; see `tidegate.publish`."""
        given = {name: value for name, value in locals().items() if name not in ("self", "df")}
        frame, values = require_frame(df), read_publish(given)
        share = 1.0 if values.allow_removal else self.settings.safety.max_removed
        publish = PublishRequest(
            target=Endpoint.parse(values.target),
            update_id=values.update_id,
            key=values.key,
            cursor=values.cursor,
            rules=Rules(
                mode=Mode(values.mode),
                duplicates=Duplicates(values.duplicates),
                before_sql=values.before_sql,
                after_sql=values.after_sql,
                checks=tuple(RowCheck(*one) for one in values.checks.items()),
                reject_limit=values.reject_limit,
                removal=RemovalLimit.of(share, "publish it with allow_removal=True"),
            ),
            partitions=values.partitions,
        )
        self.settings.connection(publish.target.connection)
        return Publisher(self.context).publish(frame, publish, wait_seconds=values.wait_seconds)

    @property
    def history(self) -> TaskHistory:
        """What ran, how it went and how long it took."""
        return TaskHistory(self.context)

    def connect(self, connection: str) -> Connection:
        """A session on one of the project's databases, for work of your own."""
        return self.context.databases.connect(connection, own_path=True)

    def marker(self, target: str, *, update_id: str) -> Marker:
        """The marker of a load of your own: `exists()` before it, `touch(connection)` in it."""
        return Marker(self.context, Endpoint.parse(target), update_id)

    def watermark(self, name: str) -> SyncWatermark:
        """The watermark of a sync, to read, set or rewind."""
        return SyncWatermark(self.context, self.sync(name, from_ledger=True))

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
        found = examine_table(self.context, sync, point, take_over=take_over)
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
            command=ADOPT,
            take_over=take_over,
        ) as held:
            return record_adoption(self.context, sync, found, held.fence, take_over=take_over)

    def why(self, target: str, /, *, run_transform: bool = False, **key: object) -> Explanation:
        """Why the row with this key is as it is: `project.why("warehouse:raw.orders", id=42)`."""
        return self.explain(target, key, run_transform=run_transform)

    def explain(
        self, target: str, key: Mapping[str, Any], *, run_transform: bool = False
    ) -> Explanation:
        """The same as `why`, for columns of any name."""
        sync = self._loading(target)
        return explain_row(self.context, sync, key, run_transform=run_transform)

    def _loading(self, target: str) -> Sync:
        """The sync of this name, `group.table` too, or the one that loads this table."""
        if ":" not in target:
            return self.sync(target, from_ledger=True)
        known = self.syncs
        wanted = target.partition(":")[0].strip()
        groups = [name for name, one in self.groups.items() if one.target.connection == wanted]
        if groups and all(str(one.target) != target for one in known.values()):
            found = self.expanded(groups, from_ledger=True).syncs
            known = known | {one.name: one for one in found if one.refused is None}
        return find_sync(known, target)

    def verify(
        self, name: str | Sync, *, repair: bool = False, allow_removal: bool = False
    ) -> Verification:
        """Compare a sync's source and target; `repair` loads again what differs."""
        sync = name if isinstance(name, Sync) else self.sync(name)
        if not repair:
            return verify_sync(self.context, sync)
        with open_heartbeat(self.context, COMMAND) as heartbeat:
            return repair_sync(self.context, sync, heartbeat, allow_removal=allow_removal)

    def backfill(
        self, name: str | Sync, *, low: str, high: str, chunk: str | None = None
    ) -> BackfillReport:
        """Load the rows of a sync with low <= cursor < high again, in chunks."""
        sync = name if isinstance(name, Sync) else self.sync(name)
        with open_heartbeat(self.context, "tidegate backfill") as heartbeat:
            return backfill_sync(self.context, sync, heartbeat, low=low, high=high, chunk=chunk)

    def vacuum(self, name: str | Sync, *, dry_run: bool = False) -> VacuumReport:
        """Remove the superseded versions that append with a key has kept."""
        sync = name if isinstance(name, Sync) else self.sync(name)
        if sync.refused is not None:
            raise sync.refused
        versions = find_versions(self.context, sync)
        if isinstance(versions, str):
            return VacuumReport(sync.name, str(sync.target), dry_run=dry_run, note=versions)
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

    @property
    def events(self) -> ProjectEvents:
        """What the project declares about its events; UsageError when it has none."""
        return find_events(self.context)

    def run_events(
        self,
        *phases: str,
        budget: str | float | None = None,
        take_over: bool = False,
        heartbeat: Heartbeat | None = None,
        ended: Callable[[Phase, EventReport], None] = lambda _, __: None,
    ) -> EventReport:
        """Run phases of the events here and now, or all three; views that fail are in the report.

        >>> project.run_events().processed.facts                     # doctest: +SKIP
        """
        unknown = [one for one in phases if one not in PHASES]
        if unknown:
            raise UsageError(f"there is no phase {unknown[0]!r}", f"one of {', '.join(PHASES)}")
        wanted = [one for one in PHASES if not phases or one in phases]
        try:
            seconds = None if budget is None else parse_duration(budget)
        except ValueError as error:
            raise UsageError(f"budget = {budget!r}", f"expected {error}") from None
        options = EventOptions(budget_seconds=seconds, take_over=take_over)
        owned = nullcontext(heartbeat) if heartbeat else open_heartbeat(self.context, EVENT_COMMAND)
        with owned as beating:
            return EventRunner(self.context, beating, ended=ended).run(wanted, options)

    def worker(
        self,
        *,
        kinds: Sequence[str] = (),
        concurrency: int | None = None,
        once: bool = False,
        burst: bool = False,
    ) -> Worker:
        """A worker for this project's queue; `run()` works, `stop()` ends it from elsewhere."""
        options = WorkerOptions(
            concurrency=self.settings.worker.concurrency if concurrency is None else concurrency,
            once=once,
            burst=burst,
        )
        self.context.control_id()
        with self.context.plane.connect() as control:
            Limits(self.context.plane, self.name).declare(control, self.settings.resources)
        handlers = handlers_of(self.context, self.sync, kinds, find_tasks=lambda: self.tasks)
        return Worker(self.context, handlers, options)

    def sweeper(self, actor: str) -> Sweeper:
        """What takes back the jobs of dead workers."""

        def targets() -> list[Endpoint]:
            found = [one.target for one in self._all().values() if isinstance(one, Sync)]
            found += [one.target for one in self.tasks.values() if one.target is not None]
            events = self.settings.events
            if events.connection is not None:
                found.append(Endpoint(events.connection, Relation.parse(events.raw_table)))
            return found

        return Sweeper(self.context, actor=actor, targets=targets)

    @property
    def scheduled(self) -> list[Scheduled]:
        """What is queued by itself, and when."""
        declared = scheduled_syncs(self.declared) + scheduled_tasks(self.tasks.values())
        return declared + scheduled_events(self.context)

    def scheduler(self, actor: str) -> Scheduler:
        """What queues the syncs and tasks that have a schedule."""
        prepare = {
            SYNC: prepare_syncs(self.context, lambda name: self.expand([name])),
            TASK: prepare_tasks(
                self.context, lambda: self.tasks, self.task_graph, lambda name: self.expand([name])
            ),
            EVENT: prepare_events(self.context),
        }
        return Scheduler(self.context, self.scheduled, prepare, actor=actor)

    def loops(self, actor: str) -> list[Loop]:
        """What looks after a project beside its workers: it sweeps and tells people of failures;
        where there is a lake it keeps the table cache up to date and follows policy."""
        found = [self.sweeper(actor).loop(), Notifier(self.context).loop()]
        refresher = Refresher(self.context)
        if refresher.lakes:
            policy = PolicyRunner(self.context).loop()
            found += [refresher.loop(then=policy.wake), policy]
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

    def _all(self) -> dict[str, Sync | Group]:
        return self._declarations().syncs

    def _declarations(self) -> Declarations:
        if self._read is None:
            self._read = read_declarations(self.settings)
        return self._read


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
    allow_removal: bool = False,
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
