"""`/healthz` and `/readyz`: whether the service lives, and whether it can do its work."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
from anyio import to_thread
from fastapi import APIRouter, Response
from psycopg import errors as pg
from pydantic import BaseModel

from tidegate.api import problem_kinds as kinds
from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.problems import Problem
from tidegate.api.service import Served, Service
from tidegate.errors import TidegateError
from tidegate.postgres.connect import Connection
from tidegate.sql import migrations

router = APIRouter(tags=["service"])
PROBE_SECONDS = 3.0
_ALIVE = b'{"status":"ok"}'
_EXAMPLE = {"status": "ready", "schema_version": 3, "sweeper_age_seconds": 4.2, "draining": False}


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
    **route(None, kinds.NOT_READY, responses={200: shown("It can.", _EXAMPLE)}),
)
async def readyz(service: Served) -> Response:
    if service.probe is None or service.probe.done():
        service.probe = asyncio.create_task(_look_soon(service))
    found, reasons = await asyncio.shield(service.probe)
    if reasons:
        raise Problem(kinds.NOT_READY, "; ".join(reasons), reasons=reasons, **found)
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
    version, newest = plane.version(control), migrations("control/migrations")[-1][0]
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
