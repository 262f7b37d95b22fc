"""What every route gets: project, sessions, caller, cache."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram

from tidegate.core.identity import Scope
from tidegate.jobs.access_audit import AccessAudit
from tidegate.jobs.sweeper import Sweeps
from tidegate.load.context import Context
from tidegate.postgres.connection import Connection
from tidegate.postgres.databases import CONTROL
from tidegate.project import Project
from tidegate.service import problems as kinds
from tidegate.service.problems import HttpProblem

FRESH_SECONDS = 1.0
_MOST = 2_000


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer and the route that made it."""

    until: float
    route: str
    body: bytes
    headers: list[tuple[bytes, bytes]]


@dataclass(slots=True)
class AnswerCache:
    """Answers by address; a second old at most, and none after a change made here."""

    _kept: dict[bytes, CachedAnswer] = field(default_factory=dict)
    _changes: int = 0

    @property
    def changes(self) -> int:
        """How often all was forgotten; what was read before that is not kept any more."""
        return self._changes

    def get(self, path: bytes, query: bytes) -> CachedAnswer | None:
        found = self._kept.get(path + b"?" + query if query else path)
        return None if found is None or found.until < time.monotonic() else found

    def keep(
        self,
        path: bytes,
        query: bytes,
        route: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        since: int,
    ) -> None:
        if since != self._changes:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        until = time.monotonic() + FRESH_SECONDS
        self._kept[path + b"?" + query if query else path] = CachedAnswer(
            until, route, body, headers
        )

    def forget(self) -> None:
        self._changes += 1
        self._kept.clear()


_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Requests:
    """The requests of one service, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            "tidegate_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "tidegate_http_request_seconds",
            "How long requests took.",
            ("route",),
            buckets=_BOUNDS,
            registry=registry,
        )
        self._counts: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if method in _METHODS else "other", route, status)
        counted = self._counts.get(key)
        if counted is None:
            # Looking a series up by its labels costs more than counting.
            counted = self._counts[key] = self._count.labels(key[0], route, str(status))
        counted.inc()
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may."""

    name: str
    scope: Scope
    by_token: bool

    @property
    def actor(self) -> str:
        """How jobs and the audit call them."""
        return f"token {self.name} (HTTP)" if self.by_token else f"{self.name} (HTTP)"


@dataclass(slots=True)
class Service:
    """One opened project that is served."""

    project: Project
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    started_at: float = field(default_factory=time.monotonic)
    kept: AnswerCache = field(default_factory=AnswerCache)
    probe: asyncio.Task[Any] | None = None
    """what those who ask whether it is ready wait for together"""
    probe_place: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    requests: Requests = field(init=False)
    audit: AccessAudit = field(init=False)
    _events: Counter = field(init=False)

    def __post_init__(self) -> None:
        self.requests = Requests(self.registry)
        self.audit = AccessAudit(self.context.plane, self.project.name)
        self._events = Counter(
            "tidegate_events_taken_in",
            "Events that came in here, new or known.",
            ("outcome",),
            registry=self.registry,
        )

    @property
    def context(self) -> Context:
        return self.project.context

    @contextmanager
    def control(self) -> Iterator[Connection]:
        """A session on the control database, given back afterwards."""
        with self.context.databases.lease(CONTROL) as connection:
            yield connection

    def sweeper_age(self, control: Connection) -> float | None:
        """How many seconds ago the project was last swept; None when never."""
        last = Sweeps(self.context.plane).last(control, self.project.name)
        return None if last is None else last.age_seconds

    def count_events(self, accepted: int, known: int) -> None:
        self._events.labels("accepted").inc(accepted)
        self._events.labels("known").inc(known)

    def keep(self, request: Request, answer: Response, since: int) -> Response:
        """Give the same answer to whoever asks within the next moment; `since` is from before
        anything was read for it."""
        scope = request.scope
        self.kept.keep(
            scope["raw_path"],
            scope["query_string"],
            scope["route"].path,
            bytes(answer.body),
            answer.raw_headers,
            since=since,
        )
        return answer


def _service(request: Request) -> Service:
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


def _caller(request: Request) -> Caller:
    found = request.state.caller
    assert isinstance(found, Caller)
    return found


Served = Annotated[Service, Depends(_service)]
Asker = Annotated[Caller, Depends(_caller)]


class Allow:
    """A route's scope: checked before the route, and told in its description."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __call__(self, caller: Asker) -> None:
        if not caller.scope.allows(self.scope):
            raise HttpProblem(
                kinds.FORBIDDEN,
                f"this needs a token of scope {self.scope.value}; {caller.name} has "
                f"{caller.scope.value}",
                hint=f"tidegate token create NAME --scope {self.scope.value}",
                needed=self.scope.value,
            )
