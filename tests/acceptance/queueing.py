"""Jobs for the workers of a scene: submitted, watched, cancelled, and the worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from acceptance.harness import Scene
from acceptance.oracle import scalar
from acceptance.processes import Process, WarmProcess, until
from tidegate.control.jobs import Jobs
from tidegate.model.job import NOTHING, JobRequest, LockAt, Submitted
from tidegate.project import Project
from tidegate.runtime.cancel import Cancelled, cancel_job
from tidegate.runtime.runner import RunOptions, sync_request

READY = " takes "

_SLOW = """
import pathlib
import tidegate as tg

@tg.sync(source="source:public.orders", target="warehouse:raw.orders", cursor="updated_at",
         partitions=2)
def orders(df):
    if pathlib.Path({fail!r}).exists():
        raise ValueError("not today")
    if not pathlib.Path({gate!r}).exists():
        return df
    def stay(batches):
        import pathlib, time
        pathlib.Path({busy!r}).touch()
        while pathlib.Path({hold!r}).exists():
            time.sleep(0.1)
        yield from batches
    return df.mapInArrow(stay, df.schema)
"""


@dataclass(frozen=True, slots=True)
class SlowStage:
    """A transformation that stays in Spark, on both of its cores, as long as it is told to.

    It fails while there is a file `fail`.

    Spark ends a task, not what a user's Python does in it: `hold` lets those processes go at last.
    """

    folder: Path

    @property
    def pipelines(self) -> str:
        paths = {name: str(self.folder / name) for name in ("gate", "hold", "busy", "fail")}
        return _SLOW.format(**paths)

    @property
    def is_busy(self) -> bool:
        return (self.folder / "busy").exists()

    def close_gate(self) -> None:
        """Whoever runs the transformation from now on stays in it."""
        (self.folder / "busy").unlink(missing_ok=True)
        for name in ("gate", "hold"):
            (self.folder / name).touch()

    def open_gate(self) -> None:
        """Later runs pass; those in it stay."""
        (self.folder / "gate").unlink(missing_ok=True)

    def let_go(self) -> None:
        self.open_gate()
        (self.folder / "hold").unlink(missing_ok=True)


def start_command(
    scene: Scene,
    *arguments: str,
    before: tuple[str, ...] = (),
    failpoint: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Any command of Tidegate in the scene's project, ended with the scene."""
    log = scene.folder / f"{arguments[0]}-{next(scene._numbers)}"
    armed = {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
    words = [*before, *arguments, "--project", str(scene.folder)]
    if environment is None:
        process: Process = WarmProcess(["tidegate", *words], log, armed)
    else:
        # It may change how Python itself starts.
        command = [sys.executable, "-m", "tidegate.cli.main", *words]
        process = Process(command, log, {**armed, **environment})
    scene._started.append(process)
    return process


def start_worker(
    scene: Scene,
    *options: str,
    failpoint: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """A worker that is ready to take jobs."""
    process = start_command(scene, "worker", *options, failpoint=failpoint, environment=environment)
    wait_until_ready(process)
    return process


def wait_until_ready(worker: Process) -> None:
    worker.wait_for(lambda: READY in worker.out, "the worker to be ready")


@contextmanager
def opened(scene: Scene) -> Iterator[Project]:
    with Project.open(scene.folder) as project:
        project.context.control_id()
        yield project


def submit_sync(scene: Scene, name: str = "orders", **options: Any) -> UUID:
    """Queue a sync as `tidegate run --queue` does."""
    with opened(scene) as project, project.context.plane.connect() as control:
        request = replace(
            sync_request(project.context, project.sync(name), RunOptions()),
            **{"lock_at": LockAt.CLAIM, **options},
        )
        submitted = Jobs(project.context.plane).submit(control, request, "test")
    assert submitted.outcome is Submitted.QUEUED, submitted
    assert submitted.job_id is not None
    return submitted.job_id


def submit_nothing(scene: Scene, count: int = 1, **options: Any) -> list[UUID]:
    """Queue jobs that do nothing."""
    found = []
    with opened(scene) as project, project.context.plane.connect() as control:
        for number in range(count):
            request = JobRequest(
                "shop", NOTHING, f"nothing-{number}", None, lock_at=LockAt.NEVER, **options
            )
            submitted = Jobs(project.context.plane).submit(control, request, "test")
            assert submitted.job_id is not None
            found.append(submitted.job_id)
    return found


def cancel(scene: Scene, job_id: UUID) -> Cancelled:
    """Cancel as `tidegate job cancel` does; returns when that answers."""
    with opened(scene) as project, project.context.plane.connect() as control:
        return cancel_job(project.context, control, job_id, actor="test")


_CANCEL = """
import sys, uuid
from tidegate.project import Project
from tidegate.runtime.cancel import cancel_job
with Project.open(sys.argv[1]) as project, project.context.plane.connect() as control:
    cancel_job(project.context, control, uuid.UUID(sys.argv[2]), actor="test")
"""


def start_canceller(scene: Scene, job_id: UUID, *, failpoint: str) -> Process:
    """A cancel in a process of its own, to be killed."""
    process = Process(
        [sys.executable, "-c", _CANCEL, str(scene.folder), str(job_id)],
        scene.folder / f"cancel-{next(scene._numbers)}",
        {"TIDEGATE_FAILPOINT": failpoint},
    )
    scene._started.append(process)
    return process


def status_of(scene: Scene, job_id: UUID) -> str:
    return str(
        scalar(scene.control, "SELECT status FROM tidegate_control.jobs WHERE job_id = %s", job_id)
    )


def running_job(scene: Scene) -> UUID:
    found = scalar(
        scene.control, "SELECT job_id FROM tidegate_control.jobs WHERE status = 'running'"
    )
    assert isinstance(found, UUID)
    return found


def wait_until_ended(scene: Scene, *jobs: UUID, seconds: float = 60) -> None:
    def ended() -> bool:
        return not scalar(
            scene.control,
            "SELECT count(*) FROM tidegate_control.jobs WHERE job_id = ANY(%s)"
            " AND status NOT IN ('done', 'failed', 'cancelled')",
            list(jobs),
        )

    until(ended, "the jobs to end", seconds)


def counts(scene: Scene) -> dict[str, int]:
    """How many jobs have which status."""
    with psycopg.connect(scene.control, autocommit=True) as connection:
        return dict(
            connection.execute(
                "SELECT status, count(*) FROM tidegate_control.jobs GROUP BY 1"
            ).fetchall()
        )


def ends_of(scene: Scene, job_id: UUID) -> list[str]:
    """Every terminal state that was ever written for a job, from its audit."""
    with psycopg.connect(scene.control, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT event FROM tidegate_control.job_audit WHERE job_id = %s"
            " AND event IN ('done', 'failed', 'cancelled') ORDER BY id",
            (job_id,),
        )
        return [row[0] for row in rows]


def assert_each_ended_once(scene: Scene) -> None:
    """No job has two terminal states, and none is without."""
    with psycopg.connect(scene.control, autocommit=True) as connection:
        odd = connection.execute(
            "SELECT j.job_id, j.status, array_agg(a.event) FROM tidegate_control.jobs j"
            " LEFT JOIN tidegate_control.job_audit a ON a.job_id = j.job_id"
            " AND a.event IN ('done', 'failed', 'cancelled')"
            " GROUP BY 1 HAVING array_agg(a.event) <> ARRAY[j.status]"
            " OR count(a.event) <> 1"
        ).fetchall()
    assert odd == []


@dataclass(frozen=True, slots=True)
class Published:
    """What the destination holds: to be compared before and after."""

    rows: int = 0
    markers: int = 0
    version: int = 0
    watermark: str | None = None

    @property
    def nothing(self) -> bool:
        return self == Published()


def published(scene: Scene) -> Published:
    """Rows, markers and watermark of the target, in one snapshot."""
    with psycopg.connect(scene.destination) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        there = connection.execute(
            "SELECT to_regclass('raw.orders') IS NOT NULL,"
            " to_regclass('tidegate.etl_state') IS NOT NULL"
        ).fetchone()
        assert there is not None

        def one(query: LiteralString) -> tuple[Any, ...]:
            return connection.execute(query).fetchone() or (0, None)

        rows = one("SELECT count(*) FROM raw.orders")[0] if there[0] else 0
        if not there[1]:
            return Published(rows)
        markers = one("SELECT count(*) FROM tidegate.table_updates")[0]
        return Published(
            rows, markers, *one("SELECT version, high_watermark FROM tidegate.etl_state")
        )
