"""Errors as problem documents (RFC 9457): the one place where they are turned into answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from tidegate.api import problem_kinds as kinds
from tidegate.api.answers import render
from tidegate.api.problem_kinds import ProblemKind
from tidegate.errors import BusyError, ConnectionFailed, TidegateError, UsageError
from tidegate.log import log
from tidegate.postgres.connect import session_lost

PROBLEM_JSON = "application/problem+json"
RETRY_SECONDS = 5
MOST_ERRORS = 20
# Characters of a text in an answer: however much is wrong, little is said.
_LONGEST = 1_000
_LONGEST_INSIDE = 200
_BY_STATUS = {404: kinds.NOT_FOUND, 405: kinds.METHOD_NOT_ALLOWED, 400: kinds.MALFORMED}


class Problem(Exception):
    """What is answered instead of what was asked for."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.hint = hint
        self.more = more
        self.headers = dict(headers or {})
        if kind.status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_SECONDS))
        if kind.status == 401:
            self.headers.setdefault("WWW-Authenticate", "Bearer")

    def document(self, path: str) -> dict[str, Any]:
        found = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": path,
        }
        if self.hint is not None:
            found["hint"] = self.hint
        return {key: _cut(value) for key, value in (found | self.more).items()}

    def answer(self, path: str) -> Response:
        body = render(self.document(path))
        return Response(body, self.kind.status, self.headers, PROBLEM_JSON)


def problem_of(error: Exception) -> Problem:
    """What an error means to whoever asked; what is not known is told as little of as possible."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        kind = _BY_STATUS.get(error.status_code, kinds.INTERNAL)
        return Problem(kind, kind.text, headers=error.headers)
    if isinstance(error, ConnectionFailed):
        return _unavailable()
    if isinstance(error, BusyError):
        return Problem(kinds.BUSY, error.message, hint=error.hint)
    if isinstance(error, UsageError):
        return Problem(kinds.REFUSED, error.message, hint=error.hint)
    if isinstance(error, psycopg.Error) and (
        session_lost(error) or isinstance(error, psycopg.OperationalError)
    ):
        return _unavailable()
    if isinstance(error, TidegateError) and isinstance(error.__cause__, psycopg.OperationalError):
        return _unavailable()
    if isinstance(error, TidegateError):
        return Problem(kinds.INTERNAL, error.message, hint=error.hint)
    return Problem(kinds.INTERNAL, kinds.INTERNAL.text)


def invalid(errors: list[dict[str, Any]]) -> Problem:
    """Some fields are wrong; each is named with what was expected."""
    told = errors[:MOST_ERRORS]
    named = ", ".join(dict.fromkeys(_cut(str(one["field"]), 60) for one in told))
    more = f" and {len(errors) - MOST_ERRORS:,} more" if len(errors) > MOST_ERRORS else ""
    said = f"not understood: {named}{more}; nothing was changed"
    return Problem(kinds.INVALID, said, errors=told)


def answer_problems(app: FastAPI) -> None:
    """Whatever is raised becomes a problem document."""

    async def tell(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.kind.status >= 500 and not isinstance(error, Problem):
            log.warning(
                "request_failed",
                method=request.method,
                path=request.url.path,
                error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                exc_info=problem.kind is kinds.INTERNAL and not isinstance(error, TidegateError),
            )
        request.state.problem = problem.kind.name
        return problem.answer(request.url.path)

    for kind in (
        Problem,
        RequestValidationError,
        HTTPException,
        TidegateError,
        psycopg.Error,
        Exception,
    ):
        app.add_exception_handler(kind, tell)


def _cut(value: Any, longest: int = _LONGEST) -> Any:
    """A value of an answer, its texts shortened."""
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[: longest - 1]}…"
    if isinstance(value, dict):
        return {key: _cut(one, _LONGEST_INSIDE) for key, one in value.items()}
    if isinstance(value, list):
        return [_cut(one, _LONGEST_INSIDE) for one in value]
    return value


def _unavailable() -> Problem:
    # The driver's words may tell of hosts and users; they are in the log.
    return Problem(kinds.DATABASE, "a database that this needs does not answer; try again")


def _invalid(error: RequestValidationError) -> Problem:
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return Problem(kinds.MALFORMED, "the body is not JSON")
    return invalid([_field(one) for one in found])


def _field(one: Mapping[str, Any]) -> dict[str, Any]:
    place = [str(part) for part in one["loc"]]
    inside = place[1:] if place[0] in ("body", "query", "path", "header") else place
    said: dict[str, Any] = {
        "field": ".".join(inside) or place[0],
        "in": place[0],
        "message": str(one["msg"]).removeprefix("Value error, "),
    }
    known = (one.get("ctx") or {}).get("expected")
    if known:
        said["known"] = str(known)
    return said
