"""Bodies as they arrive: not larger, not slower and of no other type than allowed."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from tidegate.api import problem_kinds as kinds
from tidegate.api.access import Headers
from tidegate.api.problems import Problem

SECONDS = 10.0
"""for a whole body"""


async def read_body(headers: Headers, receive: Receive, most: int) -> bytes:
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
            kinds.TIMEOUT,
            f"the body did not arrive within {SECONDS:g} seconds",
            headers={"Connection": "close"},
        ) from None
    if body:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            shown = kind.decode("latin-1") or "none"
            raise Problem(kinds.UNSUPPORTED_TYPE, f"the body's type is {shown}")
    return bytes(body)


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
    return Problem(
        kinds.TOO_LARGE,
        f"bodies are read up to {most:,} bytes (serve.max_request)",
        headers={"Connection": "close"},
    )
