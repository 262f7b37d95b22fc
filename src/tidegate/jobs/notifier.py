"""Deliver notices: webhook, command."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import SecretStr

from tidegate.core.errors import TidegateError
from tidegate.core.failpoints import reach
from tidegate.core.log import log
from tidegate.core.units import Backoff
from tidegate.jobs.context import JobContext
from tidegate.jobs.lease import now
from tidegate.jobs.loop import Loop, reason
from tidegate.jobs.notices import Notices, OutgoingNotice, slack_message
from tidegate.postgres.connection import Connection
from tidegate.version import __version__


class NotDelivered(TidegateError):
    """A message did not arrive, as far as we know; it is tried again."""

    transient = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


COMMAND_SECONDS = 30.0
# Not TIDEGATE_, which stands for settings wherever the program calls tidegate itself.
_PREFIX = "NOTICE_"
_NAMED = ("id", "event", "project", "kind", "name", "job_id", "error", "failures", "text")


def call(
    command: Sequence[str],
    document: dict[str, Any],
    folder: Path,
    timeout_seconds: float = COMMAND_SECONDS,
) -> None:
    """Run the program, without a shell; raises NotDelivered unless it ends with 0 in time."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **_environment(document)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise NotDelivered(
            f"{command[0]} cannot be started: {error.strerror or type(error).__name__}"
        ) from None
    except ValueError:
        raise NotDelivered(f"{command[0]} cannot be given this message") from None
    with process:
        try:
            process.communicate(json.dumps(document).encode() + b"\n", timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            raise NotDelivered(
                f"{command[0]} did not end within {timeout_seconds:g} seconds"
            ) from None
        finally:
            # Those it started too: they are in a session of their own.
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise NotDelivered(f"{command[0]} ended with {process.returncode}")


def _environment(document: dict[str, Any]) -> dict[str, str]:
    return {
        f"{_PREFIX}{name.upper()}": "" if document.get(name) is None else _text(document[name])
        for name in _NAMED
    }


def _text(value: object) -> str:
    return str(value).replace("\0", "")


WEBHOOK_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 3_600.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message goes where the settings say, and nowhere else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def send(
    url: SecretStr, document: dict[str, Any], timeout_seconds: float = WEBHOOK_SECONDS
) -> None:
    """Post a notice; raises NotDelivered unless it was taken."""
    request = urllib.request.Request(
        url.get_secret_value(),
        json.dumps(slack_message(document)).encode(),
        {
            "Content-Type": "application/json; charset=utf-8",
            "Idempotency-Key": str(document["id"]),
            "User-Agent": f"tidegate/{__version__}",
        },
        method="POST",
    )
    ended: list[NotDelivered | None] = []
    # A timeout of the socket starts anew with every byte; this one does not.
    thread = threading.Thread(
        target=lambda: ended.append(_post(request, timeout_seconds)),
        name="tidegate-webhook",
        daemon=True,
    )
    thread.start()
    thread.join(timeout_seconds)
    if not ended:
        raise NotDelivered(f"the webhook did not answer within {timeout_seconds:g} seconds")
    if ended[0] is not None:
        raise ended[0]


def _post(request: urllib.request.Request, timeout_seconds: float) -> NotDelivered | None:
    """What went wrong, in words that name no address; whatever it is, it ends here."""
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=timeout_seconds):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return NotDelivered(
                f"the webhook answered {error.code}",
                retry_after_seconds=_retry_after(error.headers.get("Retry-After")),
            )
    except Exception as error:
        return NotDelivered(f"the webhook cannot be reached: {_reason(error)}")


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, socket.gaierror):
        return "its host name is not known"
    if isinstance(cause, ssl.SSLError):
        return "its certificate or its TLS is not accepted"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__


def _retry_after(given: str | None) -> float | None:
    if given is None or not given.strip().isascii() or not given.strip().isdigit():
        return None
    return min(float(given.strip()[:9]), _LONGEST_WAIT_SECONDS)


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
        webhook_timeout_seconds: float = WEBHOOK_SECONDS,
        command_timeout_seconds: float = COMMAND_SECONDS,
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
            send(settings.webhook, document, self._webhook_timeout)
        elif channel == "command" and settings.command is not None:
            call(settings.command, document, self._root, self._command_timeout)
        else:
            raise NotDelivered(f"notify.{channel} is not set any more")

    def _deliver(self, control: Connection, one: OutgoingNotice) -> str:
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

    def _put_off(self, control: Connection, one: OutgoingNotice, error: NotDelivered) -> str:
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
