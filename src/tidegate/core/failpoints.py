"""Named points at which a test may kill, stop or pause this process; free when off.

`TIDEGATE_FAILPOINT="publish.apply=kill"` arms one point. Actions: `kill` (SIGKILL to ourselves;
`kill:PATH` creates PATH first, so that the deed is known), `stop` (SIGSTOP), `raise`, and
`wait:PATH` (announce by creating PATH, go on when it is removed).
`@N` after the name arms the N-th passage only: `batch.planned@2=kill`. `*=trace:PATH` does nothing
but write the name of every point that is passed to PATH.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

POINTS = (
    "job.submitted",
    "job.claimed",
    "fence.raised",
    "slot.made",
    "changes.landed",
    "batch.planned",
    "evolve.changed",
    "evolve.done",
    "stage.write",
    "stage.written",
    "stage.done",
    "check.done",
    "publish.fenced",
    "publish.marked",
    "publish.applied",
    "publish.moved",
    "publish.committed",
    "slot.noted",
    "slot.advanced",
    "branch.created",
    "branch.staged",
    "intent.noted",
    "branch.forwarded",
    "branch.dropped",
    "job.finishing",
    "job.finished",
    "job.settling",
    "adopt.moved",
    "adopt.committed",
    "vacuum.chunk",
    "maintenance.healed",
    "action.started",
    "action.done",
    "orphans.listed",
    "orphans.deleted",
    "cancel.requested",
    "cancel.fenced",
    "tick.queued",
    "tick.noted",
    "tick.committed",
    "state.written",
    "state.loaded",
    "notice.delivered",
    "event.provisioned",
    "event.claimed",
    "event.staged",
    "event.applied",
    "event.committed",
    "event.refreshed",
)


ANY = "*"


class FailpointHit(RuntimeError):
    """Raised by the `raise` action."""


def _parse(text: str) -> tuple[str, int, str] | None:
    if not text:
        return None
    point, _, action = text.partition("=")
    name, _, passage = point.partition("@")
    if name == ANY and action.startswith("trace:"):
        return name, 1, action
    if name not in POINTS:
        raise ValueError(f"TIDEGATE_FAILPOINT: unknown point {name!r}; one of {', '.join(POINTS)}")
    return name, int(passage or 1), action or "kill"


_armed = _parse(os.environ.get("TIDEGATE_FAILPOINT", ""))
_passages = 0


def reach(name: str) -> None:
    """Note that execution got to the point called `name`."""
    if _armed is None:
        return
    if _armed[0] == name:
        _fire(_armed)
    elif _armed[0] == ANY:
        with Path(_armed[2].partition(":")[2]).open("a", encoding="utf-8") as trace:
            trace.write(f"{name}\n")


def _fire(armed: tuple[str, int, str]) -> None:
    global _passages
    _passages += 1
    name, passage, action = armed
    if _passages != passage:
        return
    kind, _, argument = action.partition(":")
    if kind == "kill":
        if argument:
            Path(argument).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        # Sent to this thread: another would stop the process a moment later.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif kind == "wait":
        flag = Path(argument)
        flag.touch()
        while flag.exists():
            time.sleep(0.02)
    else:
        raise FailpointHit(f"failpoint {name}")
