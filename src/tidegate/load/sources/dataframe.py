"""Tg.publish: a DataFrame as a source."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.config.sync import Mode, Rules
from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import BusyError, DeclarationError, StaleAttempt
from tidegate.core.relation import Endpoint, RelationKind, Table
from tidegate.core.shape import Shape, StagedColumn
from tidegate.jobs.attempt import ClaimedWork, LiveAttempt
from tidegate.jobs.claim import Claimed, claim_table, open_heartbeat, table_resource
from tidegate.jobs.heartbeat import Heartbeat
from tidegate.jobs.job import PUBLISH, Holder, JobRequest, JobStatus
from tidegate.jobs.queue import Jobs
from tidegate.jobs.reclaim import LostAttempts
from tidegate.jobs.worker_records import user_name
from tidegate.load.context import Context
from tidegate.load.engine import Attempt, stage_and_publish
from tidegate.load.sources.resolve import nearest, refuse_in_lake
from tidegate.load.stage import Staged, lake_frame_shape, stage_rows
from tidegate.load.target import Publication, Target
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.types import needs_text
from tidegate.spark.session import refuse_unreadable
from tidegate.spark.tags import interrupt, work_tag
from tidegate.spark.transform import frame_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What shall happen to the rows, whoever made them."""

    target: Endpoint
    update_id: str
    key: tuple[str, ...] | None
    cursor: str | None
    rules: Rules
    partitions: int = 32
    """in how many parts at most the rows are staged, each over a session of its own"""

    def __str__(self) -> str:
        return f"publish {self.update_id} into {self.target}"

    @property
    def payload(self) -> dict[str, Any]:
        """What makes two jobs the same publish."""
        return {
            "target": str(self.target),
            "update_id": self.update_id,
            "mode": self.rules.mode.value,
            "key": None if self.key is None else list(self.key),
        }


@dataclass(frozen=True, slots=True)
class PublishReport:
    """How a publish ended; `already` means that its marker was there before, and nothing was done.

    >>> PublishReport("done", 3, 2, 0, False, "revenue-2026-11-01").changed
    2
    """

    status: str
    rows: int
    changed: int
    rejected: int
    already: bool
    update_id: str
    notes: tuple[str, ...] = ()
    """what there is to know about the target"""

    @classmethod
    def found(cls, update_id: str) -> PublishReport:
        """Somebody has published this before."""
        return cls("already", 0, 0, 0, True, update_id)


@dataclass(frozen=True, slots=True)
class PublishWork:
    """One attempt at one publish."""

    context: Context
    publish: PublishRequest
    frame: DataFrame
    destination: Target
    attempt: Attempt

    def run(self) -> PublishReport:
        """Put the rows in, unless they are; the fence is raised, so the marker tells."""
        publish, attempt = self.publish, self.attempt
        if self.destination.exists(publish.update_id):
            return PublishReport.found(publish.update_id)

        def publication(staged: Staged) -> Publication:
            whole = publish.rules.mode is Mode.REPLACE
            return Publication(
                update_id=publish.update_id,
                batch=Batch(BatchKind.FULL if whole else BatchKind.FRAME),
                shape=staged.shape,
                writes=staged.writes,
                watermark=None,
                cursor_type=None,
                fence=attempt.fence,
                moved_by=attempt.actor,
                remaining_seconds=attempt.remaining_seconds,
                rules=publish.rules,
            )

        published = stage_and_publish(
            self.destination, self._stage, publication, attempt.check_alive
        )
        self.destination.discard(attempt.fence.attempt_id, ended=True)
        return PublishReport(
            status="already" if published.already else "done",
            rows=published.rows,
            changed=published.changed,
            rejected=published.rejected,
            already=published.already,
            update_id=publish.update_id,
            notes=published.notes,
        )

    def _stage(self) -> Staged:
        publish, attempt_id = self.publish, self.attempt.fence.attempt_id
        shape = frame_shape(self.frame, publish, self.destination)
        self.destination.prepare(shape, None, publish.rules, fence=self.attempt.fence)
        # Each part is a session and a table in the destination, which has not so many to give.
        parts = self.frame.coalesce(publish.partitions)
        return Staged(
            shape,
            stage_rows(
                self.context,
                self.destination,
                publish.target,
                shape,
                parts,
                attempt_id,
                _what(publish),
            ),
        )


def frame_shape(frame: DataFrame, publish: PublishRequest, destination: Target) -> Shape:
    """The shape of the rows; refuses what the target cannot take, before a row is computed."""
    refuse_unreadable(frame)
    what = _what(publish)
    if isinstance(destination, IcebergTarget):
        return _lake_frame_shape(frame, publish, what)
    with destination.open() as connection:
        table = describe_table(connection, destination.relation)
    columns = tuple(
        StagedColumn(name=name, staged_type=kind, target_type=target_type(table, name, kind))
        for name, _, kind in frame_columns(frame, what)
    )
    names = [column.name for column in columns]
    key = _key(publish, table, names)
    for role, wanted in [
        *(("key column", name) for name in key),
        *([("cursor", publish.cursor)] if publish.cursor else []),
    ]:
        if wanted not in names:
            raise DeclarationError(f"{what} has no {role} {wanted}", nearest(wanted, names))
    return Shape(columns, key, publish.cursor, key_is_unique=False)


def _lake_frame_shape(frame: DataFrame, publish: PublishRequest, what: str) -> Shape:
    mode = publish.rules.mode
    refuse_in_lake(publish.rules, publish.key, f"publish into {publish.target}")
    keyless = mode in (Mode.APPEND, Mode.REPLACE) or publish.rules.replaces_part
    if publish.key is None and not keyless:
        raise DeclarationError(
            f"{publish.target} is a table of a lake, which has no primary key, and {mode} needs a "
            "key",
            'name the columns that identify a row, such as key="id", or use mode="append" or '
            'mode="replace"',
        )
    return lake_frame_shape(frame, what, publish.key or (), publish.cursor)


def _what(publish: PublishRequest) -> str:
    return f"the DataFrame for {publish.target}"


def target_type(table: Table | None, name: str, kind: str) -> str:
    """Text goes into a column of a type that Spark has no equal of as that type's own text."""
    known = None if table is None else table.column(name)
    if known is None or kind != "text":
        return kind
    return known.type if known.via_text or needs_text(known.wire) else kind


def _key(publish: PublishRequest, table: Table | None, names: list[str]) -> tuple[str, ...]:
    mode = publish.rules.mode
    if publish.key is not None:
        return publish.key
    if mode is Mode.APPEND or publish.rules.replaces_part:
        return ()
    known = () if table is None or table.kind is RelationKind.VIEW else table.primary_key
    if mode is Mode.REPLACE:
        # A number that the table gives its rows itself identifies nothing in the DataFrame.
        return known if set(known) <= set(names) else ()
    if known:
        return known
    missing = "does not exist yet" if table is None else "has no primary key"
    raise DeclarationError(
        f"{publish.target} {missing}, and {mode} needs a key",
        'name the columns that identify a row, such as key="id", or use mode="append" or '
        'mode="replace"',
    )


_POLL_SECONDS = 0.25


class Publisher:
    """Publishes DataFrames from this process, in the Spark session that they belong to."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._jobs = Jobs(context.plane)
        self._actor = f"{user_name()} (tg.publish)"

    def publish(
        self, frame: DataFrame, publish: PublishRequest, *, wait_seconds: float = 0.0
    ) -> PublishReport:
        """Return when the rows are in, by us or by another; raise when they are not."""
        context = self._context
        resource = table_resource(context, publish.target)
        request = JobRequest(
            project=context.settings.project.name,
            kind=PUBLISH,
            name=str(publish.target.relation),
            resource=resource,
            payload=publish.payload,
            max_attempts=context.settings.worker.max_attempts,
        )
        destination = context.destination(publish.target)
        with context.plane.connect() as control, open_heartbeat(context, "tg.publish") as beat:
            if self._is_settled(control, destination, publish, resource):
                return PublishReport.found(publish.update_id)
            # What is wrong with the DataFrame is said before there is a job.
            frame_shape(frame, publish, destination)
            claimed = self._claim(control, destination, publish, request, beat, wait_seconds)
            if claimed is None:
                return PublishReport.found(publish.update_id)
            return self._work(frame, publish, destination, control, claimed)

    def _claim(
        self,
        control: Connection,
        destination: Target,
        publish: PublishRequest,
        request: JobRequest,
        heartbeat: Heartbeat,
        wait_seconds: float,
    ) -> Claimed | None:
        """The table for ourselves; None when another one has published the same meanwhile."""
        deadline = time.monotonic() + wait_seconds
        resource = str(request.resource)
        while not self._is_settled(control, destination, publish, resource):
            try:
                holder = self._jobs.holder(control, resource)
                if holder is not None and self._is_live(control, holder, resource):
                    raise BusyError(
                        f"{publish.target} is held by {holder}",
                        "try again when it has finished, or wait longer: wait=…",
                    )
                return claim_table(
                    self._context,
                    control,
                    destination,
                    publish.target,
                    request,
                    heartbeat,
                    actor=self._actor,
                )
            except BusyError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)
        return None

    def _is_settled(
        self,
        control: Connection,
        destination: Target,
        publish: PublishRequest,
        resource: str,
    ) -> bool:
        """Whether the rows are in and nothing is left to do.

        Where a job of the same publish died after its commit, it is taken up to be closed.
        """
        if not destination.exists(publish.update_id):
            return False
        holder = self._jobs.holder(control, resource)
        ours = holder is not None and holder.payload.get("update_id") == publish.update_id
        return holder is None or not ours or self._is_live(control, holder, resource)

    def _is_live(self, control: Connection, holder: Holder, resource: str) -> bool:
        attempts = LostAttempts(self._context.plane).list(control, resource=resource)
        dead = {attempt.attempt_id for attempt in attempts}
        return holder.status is JobStatus.RUNNING and holder.attempt_id not in dead

    def _work(
        self,
        frame: DataFrame,
        publish: PublishRequest,
        destination: Target,
        control: Connection,
        claimed: Claimed,
    ) -> PublishReport:
        reports: list[PublishReport] = []

        def work(attempt: LiveAttempt) -> dict[str, Any]:
            destination.sweep(lambda: self._jobs.live_attempts(control))
            report = PublishWork(self._context, publish, frame, destination, attempt).run()
            reports.append(report)
            return asdict(report)

        won = ClaimedWork(
            context=self._context,
            control=control,
            destination=destination,
            claimed=claimed,
            actor=self._actor,
            what=str(publish),
            interrupt=partial(interrupt, frame.sparkSession, work_tag(claimed.claim.attempt_id)),
        ).run(work)
        if won:
            return reports[-1]
        if destination.exists(publish.update_id):
            return PublishReport.found(publish.update_id)
        raise StaleAttempt(
            f"{publish} was taken over by another process, which has not finished it yet",
            "call it again: it waits for that one, or does what is left",
        )
