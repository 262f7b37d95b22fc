"""/healthz, /readyz, /metrics, /problems."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any

import psycopg
from anyio import to_thread
from fastapi import APIRouter, Path, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from psycopg import errors as pg
from pydantic import BaseModel

from tidegate.admin.metrics import (
    Metric as Figure,
)
from tidegate.admin.metrics import (
    measure,
    measure_events,
    measure_slots,
    measure_syncs,
)
from tidegate.admin.status import list_syncs
from tidegate.core.errors import TidegateError
from tidegate.core.identity import Scope
from tidegate.jobs.control_database import newest_version
from tidegate.maintenance.tables import cache
from tidegate.postgres.connection import Connection
from tidegate.service import problems as kinds
from tidegate.service.openapi import route, shown
from tidegate.service.problems import PROBLEM_KINDS, HttpProblem, ProblemKind, answer
from tidegate.service.request_context import Served, Service

router = APIRouter(tags=["service"])
PROBE_SECONDS = 3.0
_ALIVE = b'{"status":"ok"}'
_READY_EXAMPLE = {
    "status": "ready",
    "schema_version": 3,
    "sweeper_age_seconds": 4.2,
    "draining": False,
}


class Alive(BaseModel):
    """The process answers."""

    status: str


class Ready(BaseModel):
    """The service can do its work."""

    status: str
    schema_version: int
    sweeper_age_seconds: float | None
    draining: bool


@router.get(
    "/healthz",
    summary="Whether the process answers",
    description="Touches no database, and needs no token.",
    response_model=Alive,
    **route(None, responses={200: shown("It does.", {"status": "ok"})}),
)
async def healthz() -> Response:
    return Response(_ALIVE, media_type="application/json")


@router.get(
    "/readyz",
    summary="Whether the service can do its work",
    description="503 with `reasons` when not: the control database does not answer or has another "
    "schema, nobody sweeps, or no new jobs are taken in. Answers within three seconds, also when "
    "all other requests wait. Needs no token.",
    response_model=Ready,
    **route(None, kinds.NOT_READY, responses={200: shown("It can.", _READY_EXAMPLE)}),
)
async def readyz(service: Served) -> Response:
    if service.probe is None or service.probe.done():
        service.probe = asyncio.create_task(_look_soon(service))
    found, reasons = await asyncio.shield(service.probe)
    if reasons:
        raise HttpProblem(kinds.NOT_READY, "; ".join(reasons), reasons=reasons, **found)
    return answer({"status": "ready", **found})


async def _look_soon(service: Service) -> tuple[dict[str, Any], list[str]]:
    """Over a place that is kept for it: it is asked most when all others are taken."""

    def look() -> tuple[dict[str, Any], list[str]]:
        with service.control() as control, control.transaction():
            control.execute("SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = '1s'")
            return _look(service, control)

    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await to_thread.run_sync(
                look, limiter=service.probe_place, abandon_on_cancel=True
            )
    except pg.LockNotAvailable:
        return {}, ["a table of the control database is locked"]
    except (TimeoutError, TidegateError, psycopg.Error):
        return {}, ["the control database does not answer"]


def _look(service: Service, control: Connection) -> tuple[dict[str, Any], list[str]]:
    plane, reasons = service.context.plane, []
    version, newest = plane.version(control), newest_version()
    if version != newest:
        # Of another schema nothing more can be asked.
        said = f"the control database has schema version {version}, this service needs {newest}"
        return {"schema_version": version}, [said]
    age = service.sweeper_age(control)
    patience = max(60.0, 5 * service.context.settings.worker.sweep_seconds)
    if age is None:
        if time.monotonic() - service.started_at > patience:
            reasons.append("nobody has swept yet: is a worker or a sweeper running?")
    elif age > patience:
        reasons.append(f"nobody has swept for {age:.0f} seconds: is a worker or a sweeper running?")
    draining = plane.draining(control) is not None
    if draining:
        reasons.append("no new jobs are taken in: it drains")
    found = {"schema_version": version, "sweeper_age_seconds": age, "draining": draining}
    return found, reasons


TEXT = "text/plain; version=1.0.0; charset=utf-8"
_METRICS_EXAMPLE = """# HELP tidegate_queue_depth Jobs that could start now.
# TYPE tidegate_queue_depth gauge
tidegate_queue_depth{kind="maintenance"} 2.0
"""


class _Measured:
    """Figures that were just read, as a registry collects them."""

    def __init__(self, figures: list[Figure]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for figure in self._figures:
            family = GaugeMetricFamily(figure.name, figure.help, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, float(value))
            yield family


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    **route(
        Scope.READ,
        responses={
            200: {
                "description": "In the text format of Prometheus.",
                "content": {
                    "text/plain": {"schema": {"type": "string"}, "example": _METRICS_EXAMPLE}
                },
            }
        },
    ),
)
def get_metrics(service: Served) -> Response:
    context = service.context
    with service.control() as control:
        figures = list(measure(context, control))
        figures += measure_slots(context, control)
        lines = list_syncs(context, control, service.project.declared)
        figures += measure_syncs(lines, cache(context).clock(control).timestamp())
    figures += measure_events(context)
    measured = CollectorRegistry(auto_describe=False)
    measured.register(_Measured(figures))
    body = generate_latest(measured) + generate_latest(service.registry)
    return Response(body, media_type=TEXT)


problems_router = APIRouter(prefix="/problems", tags=["service"])


class ProblemPage(BaseModel):
    """One type of problem."""

    type: str
    title: str
    status: int
    text: str


class ProblemList(BaseModel):
    """Every type of problem."""

    problems: list[ProblemPage]


def _document(kind: ProblemKind) -> dict[str, object]:
    return {"type": kind.type, "title": kind.title, "status": kind.status, "text": kind.text}


_PROBLEM_EXAMPLE = _document(kinds.TABLE_BUSY)


@problems_router.get(
    "",
    summary="Every type of problem",
    response_model=ProblemList,
    **route(None, responses={200: shown("All of them.", {"problems": [_PROBLEM_EXAMPLE]})}),
)
async def list_problems() -> Response:
    return answer({"problems": [_document(kind) for kind in PROBLEM_KINDS.values()]})


@problems_router.get(
    "/{name}",
    summary="What one type of problem means",
    response_model=ProblemPage,
    **route(
        None,
        kinds.NOT_FOUND,
        kinds.INVALID,
        responses={200: shown("What it means.", _PROBLEM_EXAMPLE)},
    ),
)
async def show_problem(
    name: Annotated[str, Path(max_length=100, description="The end of a problem's type.")],
) -> Response:
    if name not in PROBLEM_KINDS:
        raise HttpProblem(kinds.NOT_FOUND, f"there is no problem {name}", hint="GET /problems")
    return answer(_document(PROBLEM_KINDS[name]))
