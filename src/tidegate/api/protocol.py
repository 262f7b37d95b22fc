"""HTTP as it comes in: the head of a request is bounded in size and in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidegate.api import problem_kinds as kinds
from tidegate.api.answers import render
from tidegate.api.problem_kinds import ProblemKind
from tidegate.api.problems import PROBLEM_JSON, Problem

LARGEST_HEAD = 32 * 1024
HEAD_SECONDS = 10.0


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, which takes heads of any size for as long as they like."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = True
        self._refused = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began_in_head = self._in_head
        super().data_received(data)
        if began_in_head and self._in_head:
            # The parser keeps what has not ended, so it must not be given more and more.
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > LARGEST_HEAD:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(kinds.MALFORMED, "this is not HTTP")

    def _refuse_head(self) -> None:
        self._refuse(kinds.HEADERS_TOO_LARGE, f"the head has over {LARGEST_HEAD:,} bytes")

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, kind: ProblemKind, detail: str) -> None:
        """Answer without any route: there is no request to speak of."""
        self._refused = True
        if self.transport.is_closing():
            return
        body = render(Problem(kind, detail).document(""))
        head = (
            f"HTTP/1.1 {kind.status} {kind.title}\r\ncontent-type: {PROBLEM_JSON}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
