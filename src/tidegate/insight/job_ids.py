"""Job ids as people type them: whole, or as much of the beginning as is unique."""

from __future__ import annotations

import re
from collections.abc import Collection
from uuid import UUID

from tidegate.control.job_lists import JobLists
from tidegate.errors import UsageError
from tidegate.postgres.connect import Connection
from tidegate.runtime.job_context import JobContext

_DIGITS = 32
_SHOWN = 10
# The digits up to here are the millisecond of the submission; with its dash one more character.
_SHORTEST = 13


def find_job(context: JobContext, connection: Connection | None, text: str) -> UUID:
    """The job of this project that an id means; UsageError when none or several do."""
    lowest, highest = id_range(text)
    project = context.settings.project.name
    found = (
        []
        if connection is None
        else JobLists(context.plane).find(connection, project, lowest, highest, _SHOWN + 1)
    )
    if not found:
        raise UsageError(
            f"there is no job {text} of project {project}; nothing was changed",
            "see the ids with: tidegate job list",
        )
    if len(found) > 1:
        shown = [f"{one.job_id} ({one.kind} {one.name}, {one.status})" for one in found[:_SHOWN]]
        more = ", and more" if len(found) > _SHOWN else ""
        raise UsageError(
            f"{text} is the beginning of several jobs: {', '.join(shown)}{more}",
            "give more of the id",
        )
    return found[0].job_id


def id_range(text: str) -> tuple[UUID, UUID]:
    """The lowest and the highest id that begin like this.

    >>> id_range("019a-8")[1]
    UUID('019a8fff-ffff-ffff-ffff-ffffffffffff')
    """
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        raise UsageError(
            f"{text!r} is not the id of a job; nothing was changed",
            "an id has up to 32 digits from 0 to f; see: tidegate job list",
        )
    return UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f"))


def short_ids(ids: Collection[UUID]) -> dict[UUID, str]:
    """The shortest beginnings that tell these jobs apart."""
    texts = {job_id: str(job_id) for job_id in ids}
    length = _SHORTEST
    while length < 36 and len({text[:length] for text in texts.values()}) < len(texts):
        length += 1
    return {job_id: text[:length].rstrip("-") for job_id, text in texts.items()}
