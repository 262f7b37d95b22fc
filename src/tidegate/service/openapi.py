"""How routes are described."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tidegate.core.identity import Scope
from tidegate.service import problems as kinds
from tidegate.service.problems import PROBLEM_JSON, PROBLEM_KINDS, HttpProblem, ProblemKind, invalid
from tidegate.service.request_context import Allow
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
                "value": HttpProblem(kind, kind.text).document("/…"),
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


Limit = Annotated[int, Query(ge=1, le=1_000, description="How many at most.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=300,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Where to go on: what `next_cursor` of the page before says.",
    ),
]


def encode(values: Sequence[Any]) -> str:
    """Where a page ended, for the next request."""
    text = json.dumps([str(one) for one in values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, count: int) -> list[str]:
    """What `encode` was given; Problem for anything else."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(base64.urlsafe_b64decode(padded))
        if isinstance(found, list) and len(found) == count:
            values = [str(one) for one in found]
            # Half of a surrogate pair is a string to JSON and to nobody else; so is NUL.
            "".join(values).encode()
            if "\0" not in "".join(values):
                return values
    except (ValueError, binascii.Error, RecursionError):
        pass
    raise bad_cursor()


def bad_cursor() -> Exception:
    return invalid(
        [{"field": "cursor", "in": "query", "message": "not what `next_cursor` of a page said"}]
    )


def links(request: Request, cursor: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of the document and headers that lead to the next page."""
    if cursor is None:
        return {"next_cursor": None, "next": None}, {}
    kept = [(key, value) for key, value in request.query_params.multi_items() if key != "cursor"]
    address = f"{request.url.path}?{urlencode([*kept, ('cursor', cursor)])}"
    return {"next_cursor": cursor, "next": address}, {"Link": f'<{address}>; rel="next"'}


PLAIN: dict[str, Any] = {"pattern": "^[^\\u0000]*$"}
"""how a schema says it"""


def no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL characters")
    return text


Text = Annotated[
    str, AfterValidator(no_nul), Query(min_length=1, max_length=300, json_schema_extra=PLAIN)
]
"""what a list is filtered by"""
