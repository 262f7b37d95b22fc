"""The application and /docs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from html import escape
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Response
from starlette.types import ASGIApp

from tidegate.project import Project
from tidegate.service.middleware import PLACES, RequestGuard
from tidegate.service.openapi import describe
from tidegate.service.problems import answer, answer_problems
from tidegate.service.request_context import Service
from tidegate.service.routes import (
    control,
    events,
    jobs,
    maintenance,
    monitoring,
    syncs,
    tables,
    tasks,
)

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "code,pre{font:13px/1.4 ui-monospace,monospace}pre{background:#8881;padding:.7em;overflow:auto}"
    "summary{cursor:pointer;padding:.25em 0}b{display:inline-block;min-width:3.5em}"
    "small{opacity:.7}table{border-collapse:collapse}td{padding:.1em 1em .1em 0;vertical-align:top}"
    ":root{color-scheme:light dark}"
)
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def page(document: dict[str, Any]) -> Response:
    """Every route by subject, each to be opened."""
    about = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width">'
        f"<title>{escape(about['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(about['title'])} <small>{escape(about['version'])}</small></h1>",
        f"<p>{escape(about['summary'])} {escape(about['description'])}</p>",
        '<p><a href="/openapi.json">OpenAPI document</a> · <a href="/problems">problems</a></p>',
    ]
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2><p>{escape(tag['description'])}</p>")
        parts += _operations(document, tag["name"])
    return Response("".join(parts), 200, _HEADERS, "text/html")


def _operations(document: dict[str, Any], tag: str) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            if tag in one["tags"]:
                yield _operation(document, method.upper(), path, one)


def _operation(document: dict[str, Any], method: str, path: str, one: dict[str, Any]) -> str:
    scope = one.get("x-scope")
    parts = [
        f"<details><summary><b>{method}</b> <code>{escape(path)}</code> {escape(one['summary'])}"
        f" <small>{scope if scope else 'no token'}</small></summary>",
        f"<p>{escape(one.get('description', ''))}</p><table>",
    ]
    for given in one.get("parameters", ()):
        text = escape(given.get("description", ""))
        parts.append(
            f"<tr><td><code>{escape(given['name'])}</code><td>{given['in']}<td>{text}</tr>"
        )
    parts.append("</table>")
    for content in one.get("requestBody", {}).get("content", {}).values():
        for example in _bodies(document, content):
            parts.append(f"<p>Body:</p>{_json(example)}")
    for status, response in one["responses"].items():
        parts.append(f"<p><b>{status}</b> {escape(response['description'])}</p>")
        parts += [
            _json(content["example"])
            for content in response.get("content", {}).values()
            if "example" in content
        ]
    return "".join([*parts, "</details>"])


def _bodies(document: dict[str, Any], content: dict[str, Any]) -> list[Any]:
    """Examples of a body: of its schema, or of this very one."""
    if "$ref" not in content["schema"]:
        return [one["value"] for one in content.get("examples", {}).values()]
    name = content["schema"]["$ref"].rpartition("/")[2]
    return list(document["components"]["schemas"][name].get("examples", ()))


def _json(example: Any) -> str:
    text = (
        example
        if isinstance(example, str)
        else json.dumps(example, indent=2, ensure_ascii=False, default=str)
    )
    return f"<pre>{escape(text)}</pre>"


ROUTERS = (
    tables.router,
    maintenance.router,
    jobs.router,
    tasks.router,
    events.router,
    syncs.router,
    control.router,
    monitoring.router,
    monitoring.problems_router,
)
_MORE_THREADS = 8
"""beside those of the requests that have a place: for lines of the audit"""


def create_app(project: Project) -> ASGIApp:
    """The service of a project, as a server takes it."""
    service = Service(project)
    app = routes()
    app.state.service = service
    return RequestGuard(app, service, service.requests)


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
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: describe(app, list(ROUTERS))  # type: ignore[method-assign]
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
