"""The notifier: notices what went wrong or well again, and sees to it that people hear of it."""

from __future__ import annotations

import random
import threading
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from tidegate.control.notices import Notices, Outgoing
from tidegate.errors import TidegateError
from tidegate.failpoints import reach
from tidegate.log import log
from tidegate.model.backoff import Backoff
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection, first_line
from tidegate.runtime import notice_command, webhook
from tidegate.runtime.delivery import NotDelivered
from tidegate.runtime.lease import now

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
        context: Context,
        *,
        backoff: Backoff = _BACKOFF,
        webhook_timeout_seconds: float = webhook.TIMEOUT_SECONDS,
        command_timeout_seconds: float = notice_command.TIMEOUT_SECONDS,
    ) -> None:
        self._settings = context.settings.notify
        self._root = context.settings.root
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


class NotifyLoop:
    """A thread that notifies at an interval, over a session of its own."""

    def __init__(self, notifier: Notifier, context: Context, interval_seconds: float) -> None:
        self.notifier = notifier
        self._context = context
        self._interval = interval_seconds
        self._control: Connection | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-notifier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End soon; a message that is under way is left to whoever looks after its lease."""
        self._stopping.set()
        self._thread.join(_LEAVE_SECONDS)

    def notify(self) -> None:
        """One look; what goes wrong is told, and tried again the next time."""
        try:
            if self._control is None or self._control.closed:
                self._control = self._context.plane.connect()
            notified = self.notifier.run_once(self._control)
        except (psycopg.Error, TidegateError) as error:
            log.warning("notifying_failed", error=first_line(error))
            if self._control is not None:
                self._control.close()
            return
        if notified != Notified():
            log.info("notified", **asdict(notified))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.notify()
            self._stopping.wait(self._interval * random.uniform(0.75, 1.25))
        if self._control is not None:
            self._control.close()
