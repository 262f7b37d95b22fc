"""How routes are described: who may, what can go wrong, and what it looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from tidegate.api import problem_kinds as kinds
from tidegate.api.problem_kinds import PROBLEM_KINDS, ProblemKind
from tidegate.api.problems import PROBLEM_JSON, Problem
from tidegate.api.service import Allow
from tidegate.model.access import Scope
from tidegate.version import __version__

_ALWAYS = (kinds.TOO_LARGE,)
_KNOWN = (
    kinds.UNAUTHORIZED,
    kinds.FORBIDDEN,
    kinds.LOOPBACK_ONLY,
    kinds.INVALID,
    kinds.TOO_MANY_GUESSES,
    kinds.OVERLOADED,
    kinds.DATABASE,
)
_CHANGING = (kinds.MALFORMED, kinds.TIMEOUT, kinds.UNSUPPORTED_TYPE)
_HEADERS = {
    401: {"WWW-Authenticate": "How to say who you are."},
    429: {"Retry-After": "After how many seconds to try again."},
    503: {"Retry-After": "After how many seconds to try again."},
}
TAGS = [
    {"name": "tables", "description": "The tables of the project's lakes."},
    {"name": "maintenance", "description": "What is done to a table, and what would help it."},
    {"name": "jobs", "description": "What is queued, what runs, what became of it."},
    {"name": "tasks", "description": "Every run that is remembered, and how it went."},
    {"name": "events", "description": "Events as they come in, and how far they have got."},
    {"name": "syncs", "description": "What is loaded, and how far it has got."},
    {"name": "service", "description": "The service itself, and how it does."},
]


class ProblemDocument(BaseModel):
    """A problem (RFC 9457); some types carry more fields."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="What kind of problem; a page of this service explains it.")
    title: str
    status: int
    detail: str = Field(description="What happened, to what.")
    instance: str = Field(description="The path that was asked for.")
    hint: str | None = Field(None, description="What to do.")


def route(
    scope: Scope | None,
    *told: ProblemKind,
    changes: bool = False,
    before: Sequence[Callable[..., None]] = (),
    **more: Any,
) -> dict[str, Any]:
    """What a route is declared with: its scope, the problems that it can answer with, and what is
    looked at before its body."""
    responses = problems(
        *_ALWAYS, *(() if scope is None else _KNOWN), *(_CHANGING if changes else ()), *told
    )
    responses |= more.pop("responses", {})
    if scope is None:
        return {"responses": responses, **more}
    extra = {"security": [{"token": [scope.value]}], "x-scope": scope.value}
    return {
        "responses": responses,
        "dependencies": [Depends(Allow(scope)), *(Depends(one) for one in before)],
        "openapi_extra": extra | more.pop("openapi_extra", {}),
        **more,
    }


def problems(*told: ProblemKind) -> dict[int | str, dict[str, Any]]:
    """Answers that are problems, by status, each with an example."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in sorted(set(told), key=lambda one: (one.status, one.name)):
        entry = found.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {
                    PROBLEM_JSON: {
                        "schema": {"$ref": "#/components/schemas/Problem"},
                        "examples": {},
                    }
                },
            },
        )
        if kind.title not in entry["description"]:
            entry["description"] += f"; or: {kind.title}"
        entry["content"][PROBLEM_JSON]["examples"][kind.name] = {
            "$ref": f"#/components/examples/{kind.name}"
        }
        for name, text in _HEADERS.get(kind.status, {}).items():
            entry.setdefault("headers", {})[name] = {
                "description": text,
                "schema": {"type": "string"},
            }
    return found


def shown(text: str, example: Any, **more: Any) -> dict[str, Any]:
    """A good answer with its example."""
    return {"description": text, "content": {"application/json": {"example": example}}, **more}


def describe(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """The OpenAPI document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title="Tidegate",
            version=__version__,
            summary="Tables of a lake, their health, and maintenance as fenced jobs.",
            description="Errors are problem documents (RFC 9457) whose types stay; each is "
            "explained under GET /problems. Times are ISO 8601 in UTC.",
            routes=app.routes,
            tags=TAGS,
        )
        for router in routers:
            _restore_examples(document, router)
        components = document.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = ProblemDocument.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(unused, None)
        components["examples"] = {
            kind.name: {
                "summary": kind.title,
                "value": Problem(kind, kind.text).document("/…"),
            }
            for kind in PROBLEM_KINDS.values()
        }
        components["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "From `tidegate token create`. Scopes: events, read, submit (both "
                "and more), admin (all). Before there is a token only this machine is served.",
            }
        }
        app.openapi_schema = document
    return app.openapi_schema


def _restore_examples(document: dict[str, Any], router: APIRouter) -> None:
    """FastAPI leaves out what is null, also where an example means it."""
    for one in router.routes:
        assert isinstance(one, APIRoute)
        for method in one.methods or ():
            answers = document["paths"][one.path][method.lower()]["responses"]
            for status, given in one.responses.items():
                for kind, content in given.get("content", {}).items():
                    if "example" in content:
                        answers[str(status)]["content"][kind]["example"] = content["example"]
