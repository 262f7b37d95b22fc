"""One action on a table: what it was expected to do, how it went, and what it has done."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.errors import DestinationError, StaleAttempt, TidegateError
from tidegate.lake.conflicts import is_passing
from tidegate.log import log
from tidegate.model.maintenance import Action, ActionOptions, Effect
from tidegate.pipeline.action_work import Result, Step, Work
from tidegate.pipeline.actions import ACTIONS
from tidegate.spark.outcome import spark_reason

_TRIES = 3


@dataclass(frozen=True, slots=True)
class ActionRun:
    """An action with its options, to be done to a table that is held."""

    work: Work
    action: Action
    options: ActionOptions

    def run(self) -> dict[str, Any]:
        """What is kept of it, whether it went well or not; raises when the attempt was replaced."""
        began = time.monotonic()
        detail: dict[str, Any] = {
            "status": "failed",
            "predicted": None,
            "actual": None,
            "error": None,
        }
        try:
            self._run(detail)
        except Exception as error:
            self._check_held(error)
            reason = _words(error)
            table, action = str(self.work.relation), self.action.value
            log.warning("action_failed", table=table, action=action, error=reason)
            detail["error"] = reason
        return detail | {"seconds": round(time.monotonic() - began, 3)}

    def _run(self, detail: dict[str, Any]) -> None:
        """Do it, again in a session of its own when somebody else has committed first.

        Or when the catalog was lost: no action does harm if it is done twice.
        """
        reason = ""
        for _ in range(_TRIES):
            step = ACTIONS[self.action](self.work, self.options)
            if detail["predicted"] is None:
                detail |= _foretold(step.predicted)
            try:
                result = step.do()
            except Exception as error:
                self._check_held(error)
                if not is_passing(error):
                    raise
                reason = spark_reason(error)
                log.info("action_conflicts", action=self.action.value, reason=reason)
            else:
                detail |= _told(step, result)
                return
        raise DestinationError(
            f"{self.work.relation} was changed by others, or its catalog lost, each of {_TRIES} "
            f"times that it was worked on: {reason}",
            "run it again when less is written to the table",
        )

    def _check_held(self, error: Exception) -> None:
        """Work that was interrupted fails in many ways; the reason is that we were replaced."""
        if isinstance(error, StaleAttempt):
            raise error
        attempt = self.work.attempt
        attempt.check_alive()
        self.work.destination.holding.check_fence(attempt.fence)


def _foretold(predicted: Effect) -> dict[str, Any]:
    before = predicted.before
    return {
        "predicted": asdict(predicted),
        "files_before": before.files,
        "bytes_before": before.bytes,
    }


def _told(step: Step, result: Result) -> dict[str, Any]:
    actual = step.actual(result)
    return {
        "status": "done" if result.skipped is None else "skipped",
        "actual": asdict(actual),
        "files_after": actual.after.files,
        "bytes_after": actual.after.bytes,
        "told": dict(result.told),
        "notes": [*result.notes, *([] if result.skipped is None else [result.skipped])],
    }


def _words(error: Exception) -> str:
    if isinstance(error, TidegateError):
        return error.message if error.hint is None else f"{error.message} ({error.hint})"
    return spark_reason(error)
