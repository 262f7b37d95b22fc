"""The notifier: notices what went wrong or well again, and sees to it that people hear of it."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.control.notices import Notices, Outgoing
from tidegate.failpoints import reach
from tidegate.log import log
from tidegate.model.backoff import Backoff
from tidegate.postgres.connect import Connection
from tidegate.runtime import notice_command, webhook
from tidegate.runtime.delivery import NotDelivered
from tidegate.runtime.job_context import JobContext
from tidegate.runtime.lease import now
from tidegate.runtime.loop import Loop, reason

_LEASE_SECONDS = 120.0
_GIVE_UP_SECONDS = 86_400.0
_MOST_AT_ONCE = 50
_TIDY_SECONDS = 600.0
_LEAVE_SECONDS = 1.0
_BACKOFF = Backoff(5.0, 1_800.0)


@dataclass(frozen=True, slots=True)
class Notified:
    """What one look led to."""

    noticed: int = 0
    delivered: int = 0
    put_off: int = 0
    given_up: int = 0


class Notifier:
    """Notices and delivers for one project; any number may, at the same time."""

    def __init__(
        self,
        context: JobContext,
        *,
        backoff: Backoff = _BACKOFF,
        webhook_timeout_seconds: float = webhook.TIMEOUT_SECONDS,
        command_timeout_seconds: float = notice_command.TIMEOUT_SECONDS,
    ) -> None:
        self._settings = context.settings.notify
        self._root = context.settings.root
        self._connect = context.plane.connect
        self._interval_seconds = context.settings.worker.sweep_seconds
        self._keep_seconds = context.settings.worker.keep_jobs_seconds
        self._backoff = backoff
        self._webhook_timeout = webhook_timeout_seconds
        self._command_timeout = command_timeout_seconds
        self._tidy_at = now() + _TIDY_SECONDS * random.random()
        self.notices = Notices(
            context.plane,
            context.settings.project.name,
            self._settings.channels,
            self._settings.on,
            self._settings.repeat_after_seconds,
        )

    def loop(self) -> Loop:
        """Notifying, for as long as it runs; when it stops, a message that is under way is left to
        whoever looks after its lease."""
        return Loop(
            "notifier",
            lambda control: asdict(self.run_once(control)),
            self._connect,
            interval_seconds=self._interval_seconds,
            leave_seconds=_LEAVE_SECONDS,
        )

    def run_once(self, control: Connection) -> Notified:
        """Notice what has happened and send what is due; a channel that fails waits its turn."""
        noticed = self.notices.notice(control)
        counts = {"delivered": 0, "put_off": 0, "given_up": 0}
        failed: set[str] = set()
        for _ in range(_MOST_AT_ONCE):
            one = self.notices.take(control, _LEASE_SECONDS, failed)
            if one is None:
                break
            outcome = self._deliver(control, one)
            counts[outcome] += 1
            if outcome != "delivered":
                failed.add(one.channel)
        if now() >= self._tidy_at:
            self._tidy_at = now() + _TIDY_SECONDS
            self.notices.prune(control, self._keep_seconds)
        return Notified(noticed, **counts)

    def send(self, channel: str, document: dict[str, Any]) -> None:
        """Deliver one message now; raises NotDelivered."""
        settings = self._settings
        if channel == "webhook" and settings.webhook is not None:
            webhook.send(settings.webhook, document, self._webhook_timeout)
        elif channel == "command" and settings.command is not None:
            notice_command.call(settings.command, document, self._root, self._command_timeout)
        else:
            raise NotDelivered(f"notify.{channel} is not set any more")

    def _deliver(self, control: Connection, one: Outgoing) -> str:
        try:
            self.send(one.channel, one.document)
        except NotDelivered as error:
            return self._put_off(control, one, error)
        except Exception as error:
            # One that cannot even be tried waits its turn, and stops no other.
            return self._put_off(control, one, NotDelivered(f"not sent: {reason(error)}"))
        reach("notice.delivered")
        self.notices.end(control, one, "delivered", None)
        return "delivered"

    def _put_off(self, control: Connection, one: Outgoing, error: NotDelivered) -> str:
        told = {"notice": str(one.notice_id), "channel": one.channel, "error": error.message}
        if one.age_seconds >= _GIVE_UP_SECONDS:
            self.notices.end(control, one, "given up", error.message)
            log.warning("notice_given_up", **told)
            return "given_up"
        delay = self._backoff.seconds(one.tries, random.random())
        if error.retry_after_seconds is not None:
            delay = max(delay, error.retry_after_seconds)
        self.notices.put_off(control, one, delay, error.message)
        log.warning("notice_not_delivered", tries=one.tries, **told)
        return "put_off"
