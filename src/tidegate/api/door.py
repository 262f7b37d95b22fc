"""The door: every request passes it, before any route and after."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import psycopg
from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.api import problem_kinds as kinds
from tidegate.api.access import OPEN, Access, Headers
from tidegate.api.bodies import discard, has_body, read_body, replayed
from tidegate.api.guesses import Guesses
from tidegate.api.problems import Problem, problem_of
from tidegate.api.requests import Requests
from tidegate.api.service import Caller, Service
from tidegate.errors import TidegateError
from tidegate.log import log, logged_with
from tidegate.postgres.databases import limited_sessions

LONGEST_ADDRESS = 8 * 1024
LARGEST_HEAD = 32 * 1024
PLACES = 16
"""so many requests work on databases at a time"""
PLACE_SECONDS = 5.0
"""so long is a place waited for"""
LOCK_SECONDS = 2.0
STATEMENT_SECONDS = 30.0
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ONCE = (b"host", b"authorization", b"content-type", b"content-length")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z")


class Door:
    """Looks who comes, how much they bring and how long it takes, and notes what they changed."""

    def __init__(self, app: ASGIApp, service: Service, requests: Requests) -> None:
        self._app = app
        self._service = service
        self._requests = requests
        self._access = Access(service)
        self._guesses = Guesses()
        self._places = asyncio.Semaphore(PLACES)
        self._log_requests = service.context.settings.serve.log == "json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        headers: Headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.match(given) else uuid.uuid4().hex.encode()
        connection = state.get("connection")
        if connection is not None:
            connection.work()
        try:
            with (
                logged_with(request_id=request_id.decode()),
                limited_sessions(LOCK_SECONDS, STATEMENT_SECONDS),
            ):
                await self._pass(scope, receive, send, headers, request_id)
        finally:
            if connection is not None:
                connection.rest()

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, request_id: bytes
    ) -> None:
        started = time.perf_counter()
        status = 500
        state = scope["state"]
        state["unread"] = has_body(headers)

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-request-id", request_id)]
                if state["unread"]:
                    # Whoever has their answer has no more to send.
                    added.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        # Names of tables may hold slashes: routes see the path as it was sent, still encoded.
        scope["path"] = scope["raw_path"].decode("ascii")
        try:
            await self._serve(scope, receive, noting, headers)
        finally:
            route = str(state.get("kept") or getattr(scope.get("route"), "path", "(none)"))
            took = time.perf_counter() - started
            self._requests.count(scope["method"], route, status, took)
            if self._log_requests:
                caller = state.get("caller")
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    milliseconds=round(took * 1000, 1),
                    client=_client(scope),
                    actor=caller and caller.actor,
                )
            await self._note_change(scope, state, route, status)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        state = scope["state"]
        try:
            path = scope["path"]
            self._look_at_head(scope)
            is_open = path in OPEN or path.startswith("/problems")
            if not is_open:
                state["caller"] = await self._caller(scope, headers)
                if scope["method"] == "GET" and await self._send_kept(scope, send, state):
                    return
            if scope["method"] not in _READING:
                most = self._service.context.settings.serve.max_request
                receive = replayed(await read_body(path, headers, receive, most), receive)
                state["unread"] = False
            if not is_open:
                await self._take_place()
        except (Problem, TidegateError, psycopg.Error) as error:
            problem = problem_of(error)
            state["problem"] = problem.kind.name
            if state["unread"] and b"expect" not in headers and problem.kind is not kinds.TIMEOUT:
                await discard(receive)
            await problem.answer(scope["path"])(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if not is_open:
                self._places.release()

    def _look_at_head(self, scope: Scope) -> None:
        names = [name for name, _ in scope["headers"]]
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            raise Problem(kinds.TOO_LARGE, f"the address has over {LONGEST_ADDRESS:,} bytes")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
            raise Problem(kinds.HEADERS_TOO_LARGE, f"the headers have over {LARGEST_HEAD:,} bytes")
        for one in _ONCE:
            if names.count(one) > 1:
                raise Problem(kinds.MALFORMED, f"there are two headers {one.decode()}")

    async def _take_place(self) -> None:
        """Be one of those that use a database; Problem when none of them ends soon."""
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise Problem(
                kinds.OVERLOADED,
                f"{PLACES} requests are worked on, and none of them ended within "
                f"{PLACE_SECONDS:g} seconds; nothing was changed",
            ) from None

    async def _send_kept(self, scope: Scope, send: Send, state: dict[str, Any]) -> bool:
        """Answer from what was answered a moment ago; False when there is no such thing."""
        kept = self._service.kept.get(scope["raw_path"], scope["query_string"])
        if kept is None:
            return False
        state["kept"] = kept.route
        await send({"type": "http.response.start", "status": 200, "headers": kept.headers})
        await send({"type": "http.response.body", "body": kept.body})
        return True

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        client = _client(scope)
        try:
            found = self._access.remembered(headers, client, reads=scope["method"] in _READING)
            if found is None:
                found = await self._find(headers, client)
        except Problem as problem:
            if problem.kind in (kinds.UNAUTHORIZED, kinds.TOO_MANY_GUESSES):
                await self._note_failure(scope, client)
            raise
        if not found.by_token and scope["http_version"] == "1.0":
            raise Problem(
                kinds.LOOPBACK_ONLY, "this request comes through a proxy, or from an old client"
            )
        return found

    async def _find(self, headers: Headers, client: str | None) -> Caller:
        guess = self._access.is_guess(headers)
        if guess:
            self._guesses.check(client)
        await self._take_place()
        try:
            if guess and self._access.is_guess(headers):
                # Others may have guessed while this one waited.
                self._guesses.check(client)
            return await to_thread.run_sync(self._access.find, headers, client)
        except Problem as problem:
            if guess and problem.kind is kinds.UNAUTHORIZED:
                self._guesses.charge(client)
            raise
        finally:
            self._places.release()

    async def _note_failure(self, scope: Scope, client: str | None) -> None:
        attempts = self._guesses.count(client)
        if attempts:
            await self._audit(
                actor=f"{client} (HTTP)",
                action="authentication",
                object=scope["path"][:500],
                outcome="401 unauthorized",
                detail={"attempts": attempts},
            )

    async def _note_change(
        self, scope: Scope, state: dict[str, Any], route: str, status: int
    ) -> None:
        """What changed something is in the audit with it; what was refused comes in here."""
        caller = state.get("caller")
        if caller is None or scope["method"] in _READING or state.get("only_added"):
            return
        self._service.kept.forget()
        if state.get("audited") and status < 500:
            return
        await self._audit(
            actor=caller.actor,
            action=f"{scope['method']} {route}",
            object=scope["path"][:500],
            outcome=f"{status} {state.get('problem', '')}".strip(),
        )

    async def _audit(self, *, actor: str, **line: Any) -> None:
        def write() -> None:
            with self._service.control() as connection:
                self._service.audit.record(connection, actor=actor, **line)

        try:
            await to_thread.run_sync(write)
        except (TidegateError, psycopg.Error) as error:
            log.warning("not_audited", actor=actor, error=str(error).splitlines()[0])


def _client(scope: Scope) -> str | None:
    return scope["client"][0] if scope.get("client") else None
