"""Access, bodies, counting: before and after every route."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg
from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as ConnectionScope

from tidegate.admin.tokens import ApiTokens, FoundToken, digest
from tidegate.core.errors import TidegateError
from tidegate.core.identity import Scope
from tidegate.core.log import log, logged_with
from tidegate.postgres.databases import limited_sessions
from tidegate.service import problems as kinds
from tidegate.service.connections import Guesses
from tidegate.service.problems import HttpProblem, problem_of
from tidegate.service.request_context import Caller, Requests, Service

OPEN = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""what everybody may ask"""
FRESH_SECONDS = 1.0
_MOST = 1_000
_CREATE = "tidegate token create NAME --scope submit"
# What proxies add, each in its own way. One that adds nothing still speaks HTTP/1.0, as nginx does
# where nothing else is said.
_FORWARDED = frozenset(
    {
        b"via",
        b"forwarded",
        b"cdn-loop",
        b"client-ip",
        b"proxy-connection",
        b"true-client-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-host",
        b"x-proxyuser-ip",
        b"x-real-ip",
    }
)
_FORWARDED_PREFIXES = (
    b"cf-",
    b"fastly-",
    b"fly-",
    b"x-amz-cf-",
    b"x-amzn-",
    b"x-appengine-",
    b"x-arr-",
    b"x-azure-",
    b"x-envoy-",
    b"x-forwarded",
    b"x-original-",
)

Headers = dict[bytes, bytes]


@dataclass(slots=True)
class Access:
    """Decides who a request comes from.

    What only reads may rely on what was found a second ago; what changes something asks again.
    """

    service: Service
    _found: dict[bytes, tuple[float, FoundToken]] = field(default_factory=dict)

    def remembered(self, headers: Headers, client: str | None, *, reads: bool) -> Caller | None:
        """Who it is, if that was found out a moment ago; to refuse it that is always enough."""
        text = token_of(headers)
        known = self._found.get(digest(text or ""))
        if known is None or time.monotonic() - known[0] > FRESH_SECONDS:
            return None
        if reads or (text is None and known[1].any_exists):
            return self._judge(known[1], text, headers, client)
        return None

    def find(self, headers: Headers, client: str | None) -> Caller:
        """Who it is, from the database; Problem when nobody that may ask."""
        text = token_of(headers)
        asked_at = time.monotonic()
        with self.service.control() as connection:
            found = ApiTokens(self.service.context.plane).find(
                connection, self.service.project.name, text or ""
            )
        key = digest(text or "")
        if text is None or found.token is not None:
            if len(self._found) >= _MOST:
                self._found.clear()
            self._found[key] = (asked_at, found)
        else:
            # What is guessed must not fill the memory.
            self._found.pop(key, None)
        return self._judge(found, text, headers, client)

    def is_guess(self, headers: Headers) -> bool:
        """Whether a token is shown that was never found good here."""
        text = token_of(headers)
        return text is not None and digest(text) not in self._found

    def _judge(
        self, found: FoundToken, text: str | None, headers: Headers, client: str | None
    ) -> Caller:
        if found.token is not None:
            return Caller(found.token.name, found.token.scope, by_token=True)
        if found.any_exists or text is not None:
            said = "no token was given" if text is None else "this token opens nothing (any more)"
            raise HttpProblem(
                kinds.UNAUTHORIZED,
                said,
                hint=f"Authorization: Bearer …, from {_CREATE}",
                headers={"Connection": "close"},
            )
        refuse_strangers(headers, client)
        return Caller("loopback", Scope.ADMIN, by_token=False)


def token_of(headers: Headers) -> str | None:
    """What stands in Authorization; None without one."""
    given = headers.get(b"authorization")
    if given is None:
        return None
    kind, _, text = given.decode("latin-1").partition(" ")
    return text.strip() if kind.lower() == "bearer" else given.decode("latin-1")


def refuse_strangers(headers: Headers, client: str | None) -> None:
    """Without tokens: only this machine itself, under a name that no other site can take."""
    if client is None or not is_loopback(client):
        _refuse("this request comes from another machine")
    if any(one in _FORWARDED or one.startswith(_FORWARDED_PREFIXES) for one in headers):
        _refuse("this request comes through a proxy")
    if not is_loopback(_host(headers)):
        _refuse("this request names another host")
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").partition("://")[2] != headers.get(
        b"host", b""
    ).decode("latin-1"):
        _refuse("this request comes from a page of another site")
    if headers.get(b"sec-fetch-site") == b"cross-site":
        _refuse("this request comes from a page of another site")


def _host(headers: Headers) -> str:
    """The name under which we were asked, without its port."""
    try:
        return urlsplit("//" + headers.get(b"host", b"").decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address is that of the machine itself; of names only localhost is.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _refuse(said: str) -> None:
    raise HttpProblem(kinds.LOOPBACK_ONLY, f"{said}, and the project has no token", hint=_CREATE)


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
        raise HttpProblem(
            kinds.TIMEOUT, f"the body did not arrive within {SECONDS:g} seconds"
        ) from None
    if body:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind not in _TYPES.get(path, {_JSON}):
            shown = kind.decode("latin-1") or "none"
            raise HttpProblem(kinds.UNSUPPORTED_TYPE, f"the body's type is {shown}")
        coding = headers.get(b"content-encoding", b"").strip().lower()
        if coding not in (b"", b"identity"):
            shown = coding.decode("latin-1")
            raise HttpProblem(kinds.UNSUPPORTED_TYPE, f"the body is encoded: {shown}")
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


def _too_large(most: int) -> HttpProblem:
    return HttpProblem(kinds.TOO_LARGE, f"bodies are read up to {most:,} bytes (serve.max_request)")


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


class RequestGuard:
    """Looks who comes, how much they bring and how long it takes, and notes what they changed."""

    def __init__(self, app: ASGIApp, service: Service, requests: Requests) -> None:
        self._app = app
        self._service = service
        self._requests = requests
        self._access = Access(service)
        self._guesses = Guesses()
        self._places = asyncio.Semaphore(PLACES)
        self._log_requests = service.context.settings.serve.log == "json"

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
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
        self,
        scope: ConnectionScope,
        receive: Receive,
        send: Send,
        headers: Headers,
        request_id: bytes,
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

    async def _serve(
        self, scope: ConnectionScope, receive: Receive, send: Send, headers: Headers
    ) -> None:
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
        except (HttpProblem, TidegateError, psycopg.Error) as error:
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

    def _look_at_head(self, scope: ConnectionScope) -> None:
        names = [name for name, _ in scope["headers"]]
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            raise HttpProblem(kinds.TOO_LARGE, f"the address has over {LONGEST_ADDRESS:,} bytes")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
            raise HttpProblem(
                kinds.HEADERS_TOO_LARGE, f"the headers have over {LARGEST_HEAD:,} bytes"
            )
        for one in _ONCE:
            if names.count(one) > 1:
                raise HttpProblem(kinds.MALFORMED, f"there are two headers {one.decode()}")

    async def _take_place(self) -> None:
        """Be one of those that use a database; Problem when none of them ends soon."""
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise HttpProblem(
                kinds.OVERLOADED,
                f"{PLACES} requests are worked on, and none of them ended within "
                f"{PLACE_SECONDS:g} seconds; nothing was changed",
            ) from None

    async def _send_kept(self, scope: ConnectionScope, send: Send, state: dict[str, Any]) -> bool:
        """Answer from what was answered a moment ago; False when there is no such thing."""
        kept = self._service.kept.get(scope["raw_path"], scope["query_string"])
        if kept is None:
            return False
        state["kept"] = kept.route
        await send({"type": "http.response.start", "status": 200, "headers": kept.headers})
        await send({"type": "http.response.body", "body": kept.body})
        return True

    async def _caller(self, scope: ConnectionScope, headers: Headers) -> Caller:
        client = _client(scope)
        try:
            found = self._access.remembered(headers, client, reads=scope["method"] in _READING)
            if found is None:
                found = await self._find(headers, client)
        except HttpProblem as problem:
            if problem.kind in (kinds.UNAUTHORIZED, kinds.TOO_MANY_GUESSES):
                await self._note_failure(scope, client)
            raise
        if not found.by_token and scope["http_version"] == "1.0":
            raise HttpProblem(
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
        except HttpProblem as problem:
            if guess and problem.kind is kinds.UNAUTHORIZED:
                self._guesses.charge(client)
            raise
        finally:
            self._places.release()

    async def _note_failure(self, scope: ConnectionScope, client: str | None) -> None:
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
        self, scope: ConnectionScope, state: dict[str, Any], route: str, status: int
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


def _client(scope: ConnectionScope) -> str | None:
    return scope["client"][0] if scope.get("client") else None
