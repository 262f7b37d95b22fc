"""`tidegate backfill` of a sync: a range of its cursor, loaded here, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from shlex import quote
from typing import Any

from tidegate.destinations.destination import Destination
from tidegate.errors import UsageError
from tidegate.model.backfill import BackfillReport
from tidegate.model.job import BACKFILL
from tidegate.model.load import LoadResult
from tidegate.model.sync import Sync
from tidegate.pipeline.backfill import BackfillWork, read_range, refuse_backfill
from tidegate.pipeline.context import Context
from tidegate.pipeline.course import SyncOutcome
from tidegate.pipeline.opening import OpenSource, Source, open_source, work_through
from tidegate.runtime.attempt import LiveAttempt
from tidegate.runtime.heartbeat import Heartbeat
from tidegate.runtime.loading import CommandedLoads, record_load

COMMAND = "tidegate backfill"


def backfill_sync(
    context: Context,
    sync: Sync,
    heartbeat: Heartbeat,
    *,
    low: str,
    high: str,
    chunk: str | None = None,
    step: Callable[[LoadResult, int, int], None] = lambda _load, _number, _of: None,
) -> BackfillReport:
    """Load the rows with low <= cursor < high again; `step` is told of each chunk that is in."""
    with open_source(context, sync) as opened:
        if not isinstance(opened, OpenSource):
            raise UsageError(
                f"the source of sync {sync.name} is a lake, which has no cursor to go by",
                f"to load all of it again: tidegate run {sync.name} --full-refresh",
            )
        source, connection = opened.source, opened.connection
        refuse_backfill(sync, source)
        wanted = read_range(connection, source, sync, low, high, chunk)
        reports: list[BackfillReport] = []

        def work(destination: Destination, attempt: LiveAttempt) -> dict[str, Any]:
            def loaded(load: LoadResult, number: int) -> None:
                record_load(attempt, load)
                step(load, number, len(wanted.bounds))

            outcome = SyncOutcome()

            def read(opened: Source) -> None:
                assert isinstance(opened, OpenSource)
                report = BackfillWork(
                    context=context,
                    sync=sync,
                    source=opened.source,
                    connection=opened.connection,
                    destination=destination,
                    attempt=attempt,
                    range=wanted,
                    step=loaded,
                    outcome=outcome,
                ).run()
                reports.append(report)

            work_through(
                context,
                sync,
                opened,
                read,
                check_alive=attempt.check_alive,
                progress=lambda: len(outcome.loads),
            )
            return asdict(reports[0])

        payload = {
            "from": wanted.low,
            "to": wanted.high,
            "chunk": wanted.chunk,
            # What a person has to give again to go on with it.
            "command": f"{COMMAND} --from {quote(low)} --to {quote(high)}"
            + ("" if chunk is None else f" --chunk {quote(chunk)}"),
        }
        loads = CommandedLoads(context, heartbeat, sync, BACKFILL, COMMAND)
        job_id = loads.run(work, payload)
    reports[0].job = str(job_id)
    return reports[0]
