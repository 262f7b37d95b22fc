"""A message to a webhook; its address is a secret, and in no error."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from typing import IO, Any

from pydantic import SecretStr

from tidegate.model.notice import slack_message
from tidegate.runtime.delivery import NotDelivered
from tidegate.version import __version__

TIMEOUT_SECONDS = 10.0
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
    url: SecretStr, document: dict[str, Any], timeout_seconds: float = TIMEOUT_SECONDS
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
