"""`tidegate run --queue`: submit instead of running."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.moments import moment
from tidegate.cli.output import print_error, print_json, print_line
from tidegate.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from uuid import UUID

    from tidegate.model.sync import Sync
    from tidegate.project import Project
    from tidegate.runtime.submitting import QueueOptions

# A clock that is a little ahead of ours gives no wrong times.
_PAST_SECONDS = 60.0


def refuse_options(given: dict[str, bool], *, queue: bool) -> None:
    """Refuse options that mean nothing here: some are for the queue, some for running now."""
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong and queue:
        raise UsageError(
            f"{' and '.join(wrong)} cannot be given with --queue: a worker runs the job",
            "leave it out, or run it here, without --queue",
        )
    if wrong:
        raise UsageError(
            f"{' and '.join(wrong)} is for queued jobs",
            "add --queue, or leave it out",
        )


def read_moment(text: str | None) -> datetime | None:
    """A time as people write it; without a zone it is in UTC, as all that is printed."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--at {text!r} is not a time", 'write it as "2026-11-16 03:00" (UTC) or with +01:00'
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if (datetime.now(UTC) - found).total_seconds() > _PAST_SECONDS:
        raise UsageError(f"--at {text} is in the past ({moment(found)})", "leave it out")
    return found.astimezone(UTC)


def read_delay(text: str | None) -> float:
    """A duration in seconds."""
    from tidegate.settings.durations import parse_duration

    try:
        return 0.0 if text is None else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--delay {text!r} is not a duration", f"give {error}") from None


def queue_syncs(
    opened: Project,
    chosen: list[Sync],
    order: QueueOptions,
    *,
    full_refresh: bool,
    allow_removal: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Submit each, and say what to type next; one that is refused does not stop the others."""
    from tidegate.cli.following import follow as watch

    documents: list[dict[str, Any]] = []
    ids: list[UUID] = []
    errors: list[TidegateError] = []
    for sync in chosen:
        try:
            found = _submit(
                opened,
                sync,
                order,
                full_refresh=full_refresh,
                allow_removal=allow_removal,
                several=len(chosen) > 1,
            )
        except TidegateError as error:
            errors.append(error)
            documents.append({"sync": sync.name, "error": error.message, "hint": error.hint})
            if not as_json:
                named = TidegateError(f"{sync.name}: {error.message}", error.hint)
                print_error(named, as_json=False)
            continue
        documents.append(found)
        ids.append(found["job"])
        if not as_json:
            print_line(f"{sync.name}: {found['said']}")
    codes = {error.exit_code for error in errors}
    code = 0 if not codes else codes.pop() if len(codes) == 1 else 1
    if ids and follow:
        code = watch(opened.context, ids, quiet=as_json) or code
    elif ids and not as_json:
        _say_next(opened, ids)
    if as_json:
        print_json(documents)
    opened.close()
    if code:
        raise typer.Exit(code)


def _submit(
    opened: Project,
    sync: Sync,
    order: QueueOptions,
    *,
    full_refresh: bool,
    allow_removal: bool,
    several: bool,
) -> dict[str, Any]:
    from dataclasses import replace

    from tidegate.cli.translation import translated

    if several and order.idempotency_key is not None:
        order = replace(order, idempotency_key=f"{order.idempotency_key}:{sync.name}")
    with translated(f"queueing {sync.name}"):
        found = opened.submit(
            sync,
            full_refresh=full_refresh,
            allow_removal=allow_removal,
            priority=order.priority,
            at=order.visible_at,
            delay=order.delay_seconds,
            idempotency_key=order.idempotency_key,
        )
    if found.created:
        later = ""
        if order.visible_at is not None:
            later = f", to run at {moment(order.visible_at)}"
        elif order.delay_seconds:
            later = f", to run in {order.delay_seconds:g} s"
        said = f"queued as job {found.job_id}{later}"
    else:
        said = f"not queued again: it is job {found.job_id} already ({found.state()})"
    return {"sync": sync.name, "job": found.job_id, "created": found.created, "said": said}


def _say_next(opened: Project, ids: list[UUID]) -> None:
    from tidegate.cli.translation import translated
    from tidegate.insight.control_session import control_session
    from tidegate.insight.queue import read_queue

    which = f"tidegate job show {ids[0]} --follow" if len(ids) == 1 else "tidegate job list"
    print_line(f"watch with: {which}")
    with translated("looking for workers"), control_session(opened.context) as control:
        if control is not None:
            queue = read_queue(opened.context.plane, control, opened.name)
            for kind, _ in queue.unserved:
                print_line(f"no worker takes {kind} now: start one with: tidegate worker")
