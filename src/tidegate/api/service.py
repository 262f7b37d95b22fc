"""What every route works with: the project, its sessions, and who asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter

from tidegate.api import problem_kinds as kinds
from tidegate.api.kept import KeptAnswers
from tidegate.api.problems import Problem
from tidegate.api.requests import Requests
from tidegate.control.access_audit import AccessAudit
from tidegate.control.sweeps import Sweeps
from tidegate.model.access import Scope
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection
from tidegate.postgres.databases import CONTROL
from tidegate.project import Project


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
    kept: KeptAnswers = field(default_factory=KeptAnswers)
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
            raise Problem(
                kinds.FORBIDDEN,
                f"this needs a token of scope {self.scope.value}; {caller.name} has "
                f"{caller.scope.value}",
                hint=f"tidegate token create NAME --scope {self.scope.value}",
                needed=self.scope.value,
            )
