"""The application: every route, behind one door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from anyio import to_thread
from fastapi import FastAPI, Response
from starlette.types import ASGIApp

from tidegate.api import (
    audit,
    drain,
    events,
    jobs,
    maintenance,
    markers,
    metrics,
    probes,
    problem_pages,
    syncs,
    tables,
    tasks,
    watermarks,
)
from tidegate.api.answers import answer
from tidegate.api.docs_page import page
from tidegate.api.documentation import describe
from tidegate.api.door import PLACES, Door
from tidegate.api.problems import answer_problems
from tidegate.api.service import Service
from tidegate.project import Project

ROUTERS = (
    tables,
    maintenance,
    jobs,
    tasks,
    events,
    syncs,
    watermarks,
    markers,
    drain,
    audit,
    probes,
    metrics,
    problem_pages,
)
_MORE_THREADS = 8
"""beside those of the requests that have a place: for lines of the audit"""


def create_app(project: Project) -> ASGIApp:
    """The service of a project, as a server takes it."""
    service = Service(project)
    app = routes()
    app.state.service = service
    return Door(app, service, service.requests)


def routes() -> FastAPI:
    """Every route, without anything behind them."""
    app = FastAPI(
        title="Tidegate",
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for module in ROUTERS:
        app.include_router(module.router)
    app.openapi = lambda: describe(app, [one.router for one in ROUTERS])  # type: ignore[method-assign]
    answer_problems(app)

    # Whoever has no token may ask for these, so that they are made once.
    made_page = cache(lambda: page(app.openapi()))
    made_document = cache(lambda: answer(app.openapi()))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return made_page()

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return made_document()

    return app


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    to_thread.current_default_thread_limiter().total_tokens = PLACES + _MORE_THREADS
    yield
