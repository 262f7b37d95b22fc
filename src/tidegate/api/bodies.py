"""Bodies as they arrive: not larger, not slower and of no other type than allowed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Message, Receive

from tidegate.api import problem_kinds as kinds
from tidegate.api.access import Headers
from tidegate.api.problems import Problem

SECONDS = 10.0
"""for a whole body"""
_JSON = b"application/json"
_TYPES = {"/events": frozenset({_JSON, b"application/x-ndjson"})}
"""what an address takes beside JSON"""
_POLITE_BYTES = 1024 * 1024
_POLITE_SECONDS = 0.5


async def read_body(path: str, headers: Headers, receive: Receive, most: int) -> bytes:
    """The body of a request, whole; Problem where it is none that is taken."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    break
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(
            kinds.TIMEOUT, f"the body did not arrive within {SECONDS:g} seconds"
        ) from None
    if body:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind not in _TYPES.get(path, {_JSON}):
            shown = kind.decode("latin-1") or "none"
            raise Problem(kinds.UNSUPPORTED_TYPE, f"the body's type is {shown}")
        coding = headers.get(b"content-encoding", b"").strip().lower()
        if coding not in (b"", b"identity"):
            shown = coding.decode("latin-1")
            raise Problem(kinds.UNSUPPORTED_TYPE, f"the body is encoded: {shown}")
    return bytes(body)


async def discard(receive: Receive) -> None:
    """Read a little further: whoever is hung up on while sending never sees the answer."""
    left = _POLITE_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_POLITE_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def has_body(headers: Headers) -> bool:
    """Whether anything comes after the head."""
    declared = headers.get(b"content-length", b"")
    return b"transfer-encoding" in headers or declared.strip(b"0") != b""


def replayed(body: bytes, receive: Receive) -> Receive:
    """A body that has been read already, for whoever reads it next."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _too_large(most: int) -> Problem:
    return Problem(kinds.TOO_LARGE, f"bodies are read up to {most:,} bytes (serve.max_request)")
