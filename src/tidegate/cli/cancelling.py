"""What `tidegate job cancel` does with several jobs, and how it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.errors import TidegateError, UsageError
from tidegate.model.job import JobStatus

if TYPE_CHECKING:
    from tidegate.pipeline.context import Context


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one job, and how many of its loads are in the table."""

    job_id: UUID
    name: str
    status: JobStatus | None = None
    loads: int = 0
    error: TidegateError | None = None

    @property
    def text(self) -> str:
        if self.status is JobStatus.DONE:
            return "done: its load was published before the cancel could reach it"
        if self.status is not JobStatus.CANCELLED:
            return f"{self.status}: it ended so before the cancel could reach it"
        if not self.loads:
            return "cancelled: nothing of it was published"
        loads = "1 load" if self.loads == 1 else f"{self.loads} loads"
        return f"cancelled: {loads} published earlier stay, nothing more of it was published"

    @property
    def document(self) -> dict[str, Any]:
        return {
            "job": self.job_id,
            "name": self.name,
            "status": self.status,
            "loads_published": self.loads,
            "error": None if self.error is None else self.error.message,
            "hint": None if self.error is None else self.error.hint,
        }


def cancel_all(context: Context, ids: Sequence[str]) -> list[Answer]:
    """Cancel these jobs; when one of them is unknown or has ended, none is touched."""
    from tidegate.control.workers import user_name
    from tidegate.insight.control_session import control_session
    from tidegate.insight.jobs import show_job

    found = {one.record.job_id: one for one in (show_job(context, text) for text in ids)}
    for one in found.values():
        if one.record.status.is_terminal:
            raise UsageError(
                f"job {one.record.job_id} ({one.record.name}) is {one.record.status} already; "
                "nothing was changed",
                f"see what it did with: tidegate job show {one.record.job_id}",
            )
    actor = f"{user_name()} (tidegate job cancel)"
    answers = []
    with control_session(context) as control:
        assert control is not None
        for one in found.values():
            job_id, name = one.record.job_id, one.record.name
            try:
                answers.append(_cancel(context, control, job_id, name, actor))
            except TidegateError as error:
                answers.append(Answer(job_id, name, error=error))
    return answers


def _cancel(context: Context, control: Any, job_id: UUID, name: str, actor: str) -> Answer:
    import psycopg

    from tidegate.insight.jobs import count_published, read_job
    from tidegate.postgres.connect import translate
    from tidegate.runtime.cancel import cancel_job

    try:
        ended = cancel_job(context, control, job_id, actor=actor)
        detail = read_job(context.plane, control, context.settings.project.name, job_id)
        return Answer(job_id, name, ended.status, count_published(context, detail))
    except psycopg.Error as error:
        raise translate(error, f"cancelling job {job_id}") from error
