"""The door: every request passes it, before any route and after."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.api import problem_kinds as kinds
from tidegate.api.access import OPEN, Access, Headers
from tidegate.api.bodies import read_body, replayed
from tidegate.api.problems import Problem, problem_of
from tidegate.api.requests import Requests
from tidegate.api.service import Caller, Service
from tidegate.errors import TidegateError
from tidegate.log import log

LONGEST_ADDRESS = 8 * 1024
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Door:
    """Looks who comes, how much they bring and how long it takes, and notes what they changed."""

    def __init__(self, app: ASGIApp, service: Service, requests: Requests) -> None:
        self._app = app
        self._service = service
        self._requests = requests
        self._access = Access(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Names of tables may hold slashes: routes see the path as it was sent, still encoded.
        scope["path"] = scope["raw_path"].decode("ascii")
        state: dict[str, Any] = scope.setdefault("state", {})
        try:
            await self._serve(scope, receive, noting, state)
        finally:
            route = str(state.get("kept") or getattr(scope.get("route"), "path", "(none)"))
            took = time.perf_counter() - started
            self._requests.count(scope["method"], route, status, took)
            await self._note_change(scope, state, route, status)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, state: dict[str, Any]
    ) -> None:
        try:
            headers: Headers = dict(scope["headers"])
            if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
                raise Problem(kinds.TOO_LARGE, f"the address has over {LONGEST_ADDRESS:,} bytes")
            path = scope["path"]
            if path not in OPEN and not path.startswith("/problems"):
                state["caller"] = await self._caller(scope, headers)
                if scope["method"] == "GET" and await self._send_kept(scope, send, state):
                    return
            if scope["method"] not in _READING:
                most = self._service.context.settings.serve.max_request
                receive = replayed(await read_body(path, headers, receive, most), receive)
        except (Problem, TidegateError, psycopg.Error) as error:
            problem = problem_of(error)
            state["problem"] = problem.kind.name
            await problem.answer(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

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
        client = scope["client"][0] if scope.get("client") else None
        if scope["method"] in _READING:
            known = self._access.remembered(headers, client)
            if known is not None:
                return known
        return await to_thread.run_sync(self._access.find, headers, client)

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
        outcome = f"{status} {state.get('problem', '')}".strip()

        def write() -> None:
            with self._service.control() as connection:
                self._service.audit.record(
                    connection,
                    actor=caller.actor,
                    action=f"{scope['method']} {route}",
                    object=scope["path"][:500],
                    outcome=outcome,
                )

        try:
            await to_thread.run_sync(write)
        except (TidegateError, psycopg.Error) as error:
            log.warning("not_audited", actor=caller.actor, error=str(error).splitlines()[0])
