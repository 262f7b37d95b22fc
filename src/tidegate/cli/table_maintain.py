"""`tidegate table maintain`: predicted, queued, or done here and now."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.cli.job.screen import action_line, effect_text
from tidegate.cli.output import print_error, print_json, print_line, working
from tidegate.core.errors import BusyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.core.table_actions import Action, ActionList
    from tidegate.jobs.heartbeat import Heartbeat
    from tidegate.load.context import Context
    from tidegate.maintenance.tables import TableView
    from tidegate.postgres.connection import Connection

_COMMAND = "tidegate table maintain"
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Maintain:
    """One table, and how what is done to it is told; each way returns the exit code."""

    context: Context
    control: Connection
    table: TableView
    as_json: bool

    def order(self, actions: Sequence[Action], options: Sequence[str]) -> ActionList | None:
        """What is to be done: what was named, else what is recommended; None is nothing."""
        from tidegate.config.maintenance import read_action_options
        from tidegate.maintenance.table_report import policy_of, table_recommendation

        given = _read_options(options)
        if actions or given:
            named = [one.value for one in actions] or list(given)
            return read_action_options(policy_of(self.context, self.table.target), named, given)
        found = table_recommendation(self.context, self.control, self.table)
        if found.order is None:
            if self.as_json:
                print_json({"table": str(self.table.target), "order": None, "status": "nothing"})
            else:
                print_line(f"{self.table.target}: nothing is recommended now; see why with:")
                print_line(f"  tidegate table recommend {self.table.target}")
            return None
        if not self.as_json:
            names = ", ".join(one.value for one in found.order.actions)
            print_line(f"{self.table.target}: recommended are {names}")
        return found.order

    def predict(self, order: ActionList) -> int:
        """Say what each action would change; nothing is locked and no Spark is started."""
        from tidegate.maintenance.submit import predict_actions, record_dry_run
        from tidegate.maintenance.table_report import effects_document
        from tidegate.maintenance.tables import cache

        target = self.table.target
        now = cache(self.context).clock(self.control)
        effects = predict_actions(self.context, target, order, now=now)
        job_id = record_dry_run(
            self.context, self.control, target, order, effects, actor=self._actor
        )
        if self.as_json:
            print_json(
                self._document(order, job_id, "dry run") | {"predicted": effects_document(effects)}
            )
            return 0
        for action, effect in effects.items():
            nothing = " (nothing to do)" if effect.is_nothing else ""
            print_line(f"{target}: {action.value} would make {effect_text(effect)}{nothing}")
        return 0

    def submit(self, order: ActionList, *, follow: bool) -> int:
        """Queue it; whoever has the table is named."""
        from tidegate.cli.job.screen import follow as watch
        from tidegate.jobs.drain import refuse_draining
        from tidegate.jobs.job import Submitted
        from tidegate.maintenance.submit import submit_maintenance, table_holder

        target = self.table.target
        submitted = submit_maintenance(self.context, self.control, target, order, actor=self._actor)
        if submitted.outcome is Submitted.DRAINING:
            refuse_draining(self.context.plane, self.control)
        if submitted.job_id is None:
            holder = table_holder(self.context, self.control, target)
            raise BusyError(
                f"{target} was not queued: it is held by {holder or 'another job'}",
                "wait until that one has finished, then try again",
            )
        if not self.as_json:
            print_line(f"{target}: queued as job {submitted.job_id}")
        code = 0
        if follow:
            code = watch(self.context, [submitted.job_id], quiet=self.as_json)
        elif not self.as_json:
            print_line(f"watch with: tidegate job show {submitted.job_id} --follow")
        if self.as_json:
            print_json(self._document(order, submitted.job_id, "queued"))
        return code

    def do(self, order: ActionList) -> int:
        """Do it in this process, and say what each action has changed."""
        from functools import partial

        from tidegate.jobs.claim import open_heartbeat
        from tidegate.jobs.shutdown import Shutdown
        from tidegate.maintenance.runner import maintain_here

        target = self.table.target
        with (
            open_heartbeat(self.context, _COMMAND) as heartbeat,
            Shutdown(partial(_leave, self.context, heartbeat), patience_seconds=_PATIENCE_SECONDS),
            nullcontext() if self.as_json else working(f"{target}: maintaining"),
        ):
            done = maintain_here(
                self.context,
                target,
                order,
                actor=self._actor,
                command=_COMMAND,
                heartbeat=heartbeat,
            )
        if self.as_json:
            actions = [{"action": one.action, **one.detail} for one in done.actions]
            error = None if done.error is None else done.error.message
            print_json(
                self._document(order, done.job_id, done.status)
                | {"actions": actions, "error": error}
            )
        else:
            for one in done.actions:
                print_line(f"{target}: {one.action}: {action_line(one.detail)}")
            if done.status == "stale":
                print_line(f"{target}: job {done.job_id} was cancelled or taken over; see:")
                print_line(f"  tidegate job show {done.job_id}")
            if done.error is not None:
                print_error(done.error, as_json=False)
        return 0 if done.status == "done" else 1

    @property
    def _actor(self) -> str:
        from tidegate.jobs.worker_records import user_name

        return f"{user_name()} ({_COMMAND})"

    def _document(self, order: ActionList, job_id: Any, status: str) -> dict[str, Any]:
        return {
            "table": str(self.table.target),
            "job": str(job_id),
            "status": status,
            "order": order.document(),
        }


def _read_options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`action.key=value` as a document."""
    from tidegate.config.layers import parse_value

    found: dict[str, dict[str, Any]] = {}
    for text in given:
        key, separator, value = text.partition("=")
        action, dot, name = key.strip().partition(".")
        if not separator or not dot or not name:
            raise UsageError(
                f"--option {text!r} is not an option of an action",
                "write --option rewrite_data_files.target_file_size=256MB",
            )
        found.setdefault(action, {})[name] = parse_value((action, name), value)
    return found


def _leave(context: Context, heartbeat: Heartbeat, reason: str) -> int:
    """Ctrl-C cancels what is under way; SIGTERM ends it as failed, so that it can be run again."""
    from tidegate.jobs.shutdown import release_jobs

    interrupted = "SIGINT" in reason
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # the cursor, which the spinner hides
    left = release_jobs(context, heartbeat, reason, cancel=interrupted)
    word = "interrupted" if interrupted else "told to stop"
    sys.stderr.write(f"{word}{', the job was ended' if left else ''}; run again at any time\n")
    return 130 if interrupted else 1
