"""Many jobs at once: copied in one transaction, at about the speed of a plain COPY."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from uuid import UUID

from psycopg import Copy
from psycopg.pq import TransactionStatus

from tidegate.core.errors import UsageError
from tidegate.core.identity import new_job_ids
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.drain import refuse_draining
from tidegate.jobs.job import JobRequest, LockAt
from tidegate.postgres.connection import Connection

_JOBS_A_COPY = 20_000
_LINES_A_WRITE = 500
_MANY = 1_000
# What COPY's text format reads as something else.
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def submit_many(
    connection: Connection, plane: ControlDatabase, requests: Iterable[JobRequest], actor: str
) -> int:
    """Queue jobs, all or none, and wake the workers once; returns how many.

    The requests are read one by one, so there may be more of them than memory would hold. Such
    jobs may take their resource when they are claimed; a key of any kind would need an answer
    for each, which is what Jobs.submit gives.
    """
    with connection.transaction():
        refuse_draining(plane, connection)
        count = _copy_all(connection, plane, iter(requests), actor)
        # A drain that began meanwhile has been promised that nothing comes in any more.
        refuse_draining(plane, connection)
    if count >= _MANY and connection.info.transaction_status is TransactionStatus.IDLE:
        # Until somebody looks, the planner takes the queue for empty, and claims sort all of it.
        connection.execute(plane.statement("jobs/job_queue", "analyze_queue"))
    return count


@dataclass(slots=True)
class _Chunk:
    """The jobs of one COPY, as far as the tables behind `jobs` need to know them."""

    now: datetime
    first: UUID | None = None
    last: UUID | None = None
    count: int = 0
    later: dict[UUID, datetime] = field(default_factory=dict)
    """when those may run that have to wait"""


def _copy_all(
    connection: Connection, plane: ControlDatabase, requests: Iterator[JobRequest], actor: str
) -> int:
    row = connection.execute("SELECT now()").fetchone()
    assert row is not None
    ids = new_job_ids()
    by, count = _text(actor), 0
    projects: set[str] = set()
    while True:
        chunk = _Chunk(row[0])
        with connection.cursor().copy(plane.statement("jobs/jobs", "copy_jobs")) as copy:
            _write(copy, chunk, ids, islice(requests, _JOBS_A_COPY), by, projects)
        if chunk.first is None:
            break
        connection.execute(
            plane.statement("jobs/jobs", "queue_copied"),
            {
                "first": chunk.first,
                "last": chunk.last,
                "actor": actor,
                "later_ids": list(chunk.later),
                "later": list(chunk.later.values()),
            },
        )
        count += chunk.count
    connection.execute(
        plane.statement("jobs/jobs", "announce_projects"),
        {"channel": plane.channel("jobs"), "projects": sorted(projects)},
    )
    return count


def _write(
    copy: Copy,
    chunk: _Chunk,
    ids: Iterator[UUID],
    requests: Iterator[JobRequest],
    by: str,
    projects: set[str],
) -> None:
    lines: list[str] = []
    # In this order nobody takes an id that no request is there for.
    for request, job_id in zip(requests, ids, strict=False):
        chunk.first = chunk.first or job_id
        chunk.last = job_id
        chunk.count += 1
        if request.visible_at is not None or request.delay_seconds:
            chunk.later[job_id] = request.visible_at or chunk.now + timedelta(
                seconds=request.delay_seconds
            )
        _refuse_answered(request)
        projects.add(request.project)
        fixed = _fixed(
            request.project,
            request.kind,
            request.name,
            request.resource,
            request.max_attempts,
            request.priority,
            request.lock_at,
            request.retry_of,
        )
        payload = json.dumps(request.payload).translate(_ESCAPED)
        lines.append(f"{job_id.hex}\t{fixed}\t{payload}\t{by}\n")
        if len(lines) == _LINES_A_WRITE:
            copy.write("".join(lines))
            lines.clear()
    if lines:
        copy.write("".join(lines))


@lru_cache(maxsize=1024)
def _fixed(*values: str | int | UUID | None) -> str:
    """The columns that are often the same from one job to the next."""
    return "\t".join(r"\N" if value is None else _text(str(value)) for value in values)


def _text(value: str) -> str:
    return value.translate(_ESCAPED)


def _refuse_answered(request: JobRequest) -> None:
    if request.lock_at is LockAt.SUBMIT:
        wanted = "takes its resource when it is submitted"
    elif request.unique_key is not None:
        wanted = f"has the unique key {request.unique_key!r}"
    elif request.idempotency_key is not None:
        wanted = f"has the idempotency key {request.idempotency_key!r}"
    elif request.limits or request.needs:
        wanted = "has limits or needs others"
    else:
        return
    raise UsageError(
        f"job {request.name} {wanted}, which many jobs at once cannot; nothing was queued",
        "submit it by itself, or let it take its resource when it is claimed",
    )
