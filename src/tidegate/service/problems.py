"""The table of problems (RFC 9457) and answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from tidegate.core.errors import BusyError, ConnectionFailed, TidegateError, UsageError
from tidegate.core.log import log
from tidegate.postgres.connection import session_lost


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One kind of problem: its status, its title, and what to do about it."""

    name: str
    status: int
    title: str
    text: str

    @property
    def type(self) -> str:
        """What stands in the body; a page of this service."""
        return f"/problems/{self.name}"


MALFORMED = ProblemKind(
    "malformed-request",
    400,
    "The request cannot be read",
    "It is not HTTP, or its body is not JSON. Send a JSON document and the header "
    "Content-Type: application/json.",
)
UNAUTHORIZED = ProblemKind(
    "unauthorized",
    401,
    "A token is needed",
    "None was given, or it is unknown, has expired or was revoked. Make one with "
    "`tidegate token create NAME --scope read` and send it as Authorization: Bearer.",
)
FORBIDDEN = ProblemKind(
    "forbidden",
    403,
    "The token does not allow this",
    "Each route says which scope it needs: events, read, submit or admin. submit includes events "
    "and read, admin includes all; what keeps less of a table than the project's policy says needs "
    "admin as well. Use a token with a larger one.",
)
LOOPBACK_ONLY = ProblemKind(
    "loopback-only",
    403,
    "Without tokens only this machine is served",
    "The project never had a token, so that only requests of this very machine are answered, under "
    "the name localhost or an address of the loopback, over HTTP/1.1, not through a proxy and not "
    "from a page of another site. Make a token with `tidegate token create NAME --scope read`.",
)
NOT_FOUND = ProblemKind(
    "not-found",
    404,
    "There is no such address",
    "The service does not know this path. Its routes are listed under /docs.",
)
TABLE_NOT_FOUND = ProblemKind(
    "table-not-found",
    404,
    "There is no such table",
    "The table is not in the table cache. GET /tables lists those that are; POST /tables/refresh "
    "looks at the lakes again.",
)
JOB_NOT_FOUND = ProblemKind(
    "job-not-found",
    404,
    "There is no such job",
    "No job of this project has this id. Jobs that ended long ago are forgotten after "
    "worker.keep_jobs.",
)
TASK_NOT_FOUND = ProblemKind(
    "task-not-found",
    404,
    "There is no such task",
    "The history of this project has no run with this id. A run is forgotten after history.keep, "
    "and nothing is recorded while history.record_task_history is false.",
)
METHOD_NOT_ALLOWED = ProblemKind(
    "method-not-allowed",
    405,
    "This address does not take the method",
    "The header Allow names those that it takes.",
)
TIMEOUT = ProblemKind(
    "request-timeout",
    408,
    "The request took too long to arrive",
    "Its body did not arrive in time. Nothing was changed; send it again.",
)
TABLE_BUSY = ProblemKind(
    "table-busy",
    409,
    "Another job holds the table",
    "One job at a time works on a table. `holder` is the id of the job that has it, also in the "
    "header Holder; wait until GET /jobs/{holder} says that it has ended. Nothing was queued, and "
    "an Idempotency-Key stays free.",
)
JOB_ENDED = ProblemKind(
    "job-ended",
    409,
    "The job has ended already",
    "There is nothing left to cancel; nothing was changed.",
)
TOO_LARGE = ProblemKind(
    "request-too-large",
    413,
    "The request is too large",
    "Bodies are read up to serve.max_request, addresses up to 8 KB, and events up to "
    "serve.max_events in one request.",
)
UNSUPPORTED_TYPE = ProblemKind(
    "unsupported-media-type",
    415,
    "The body is of another type than JSON",
    "Send the header Content-Type: application/json; POST /events also takes application/x-ndjson. "
    "Bodies are taken as they are, without a Content-Encoding.",
)
INVALID = ProblemKind(
    "invalid-request",
    422,
    "The request asks for something that there is not",
    "`errors` names each field that is wrong, what was expected, and, where there are only a few, "
    "the values that are known. Nothing was changed.",
)
TABLE_AMBIGUOUS = ProblemKind(
    "table-ambiguous",
    422,
    "Several lakes have this table",
    "Write the lake in front of the namespace, as in /tables/lake:raw/orders/status. `choices` "
    "lists those that there are.",
)
KEY_REUSED = ProblemKind(
    "idempotency-key-reused",
    422,
    "The Idempotency-Key was used for something else",
    "A key stands for one request: the same body for the same table. Use a new key for new work.",
)
REFUSED = ProblemKind(
    "refused",
    422,
    "The request is refused",
    "`detail` says why, `hint` what to do. Nothing was changed.",
)
TOO_MANY_GUESSES = ProblemKind(
    "too-many-guesses",
    429,
    "Too many wrong tokens",
    "Ten wrong tokens from one address are answered at once, then one a second. A token that was "
    "used here before goes on. Try again after the time that Retry-After says.",
)
HEADERS_TOO_LARGE = ProblemKind(
    "headers-too-large",
    431,
    "The headers are too large",
    "Address and headers together are read up to 32 KB. Some larger ones are refused with 400 and "
    "without a document.",
)
INTERNAL = ProblemKind(
    "internal-error",
    500,
    "Something went wrong in the service",
    "The log of the service tells more. A request that changes something was either carried out as "
    "a whole or not at all; with an Idempotency-Key it can be repeated safely.",
)
DRAINING = ProblemKind(
    "draining",
    503,
    "No new jobs are taken in",
    "Somebody drains the control plane, as before an upgrade. Try again after the time that "
    "Retry-After says. An Idempotency-Key stays free.",
)
BUSY = ProblemKind(
    "busy",
    503,
    "Somebody else is at it",
    "What was asked for is held by another at this moment. Try again after the time that "
    "Retry-After says.",
)
OVERLOADED = ProblemKind(
    "overloaded",
    503,
    "The service has too much to do",
    "As many requests as may use a database at a time do so, and none of them ended soon enough. "
    "Nothing was changed. Try again after the time that Retry-After says.",
)
TOO_MANY_CONNECTIONS = ProblemKind(
    "too-many-connections",
    503,
    "There are too many connections",
    "The address has serve.max_connections_per_address open, or all together have "
    "serve.max_connections. Use one for many requests, and try again after the time that "
    "Retry-After says.",
)
DATABASE = ProblemKind(
    "database-unavailable",
    503,
    "A database does not answer",
    "The control database, or the database or catalog that was asked for, cannot be reached. Try "
    "again after the time that Retry-After says. With an Idempotency-Key a request can be repeated "
    "safely.",
)
UNREADABLE = ProblemKind(
    "table-unreadable",
    503,
    "The table cannot be read now",
    "Its catalog or its files do not answer. What was last known of it is under /status/cached.",
)
NOT_READY = ProblemKind(
    "not-ready",
    503,
    "The service is not ready",
    "`reasons` says why: the control database does not answer or has another schema, nobody "
    "sweeps, or no new jobs are taken in.",
)

PROBLEM_KINDS = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, ProblemKind)
}


JSON = "application/json"


def render(value: Any) -> bytes:
    """A JSON document; half of a surrogate pair, which a request may hold, is written as such."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(render(value), status, dict(headers or {}), JSON)


def tagged_answer(request: Request, value: Any) -> Response:
    """A document with a strong ETag, or 304 for whoever has it already."""
    body = render(value)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    held = request.headers.get("if-none-match", "")
    if held.strip() == "*" or tag in {one.strip().removeprefix("W/") for one in held.split(",")}:
        return Response(None, 304, headers)
    return Response(body, 200, headers, JSON)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


PROBLEM_JSON = "application/problem+json"
RETRY_SECONDS = 5
MOST_ERRORS = 20
# Characters of a text in an answer: however much is wrong, little is said.
_LONGEST = 1_000
_LONGEST_INSIDE = 200
_BY_STATUS = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED, 400: MALFORMED}


class HttpProblem(Exception):
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


def problem_of(error: Exception) -> HttpProblem:
    """What an error means to whoever asked; what is not known is told as little of as possible."""
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        kind = _BY_STATUS.get(error.status_code, INTERNAL)
        return HttpProblem(kind, kind.text, headers=error.headers)
    if isinstance(error, ConnectionFailed):
        return _unavailable()
    if isinstance(error, BusyError):
        return HttpProblem(BUSY, error.message, hint=error.hint)
    if isinstance(error, UsageError):
        return HttpProblem(REFUSED, error.message, hint=error.hint)
    if isinstance(error, psycopg.Error) and (
        session_lost(error) or isinstance(error, psycopg.OperationalError)
    ):
        return _unavailable()
    if isinstance(error, TidegateError) and isinstance(error.__cause__, psycopg.OperationalError):
        return _unavailable()
    if isinstance(error, TidegateError):
        return HttpProblem(INTERNAL, error.message, hint=error.hint)
    return HttpProblem(INTERNAL, INTERNAL.text)


def invalid(errors: list[dict[str, Any]]) -> HttpProblem:
    """Some fields are wrong; each is named with what was expected."""
    told = errors[:MOST_ERRORS]
    named = ", ".join(dict.fromkeys(_cut(str(one["field"]), 60) for one in told))
    more = f" and {len(errors) - MOST_ERRORS:,} more" if len(errors) > MOST_ERRORS else ""
    said = f"not understood: {named}{more}; nothing was changed"
    return HttpProblem(INVALID, said, errors=told)


def answer_problems(app: FastAPI) -> None:
    """Whatever is raised becomes a problem document."""

    async def tell(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.kind.status >= 500 and not isinstance(error, HttpProblem):
            log.warning(
                "request_failed",
                method=request.method,
                path=request.url.path,
                error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                exc_info=problem.kind is INTERNAL and not isinstance(error, TidegateError),
            )
        request.state.problem = problem.kind.name
        return problem.answer(request.url.path)

    for kind in (
        HttpProblem,
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


def _unavailable() -> HttpProblem:
    # The driver's words may tell of hosts and users; they are in the log.
    return HttpProblem(DATABASE, "a database that this needs does not answer; try again")


def _invalid(error: RequestValidationError) -> HttpProblem:
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return HttpProblem(MALFORMED, "the body is not JSON")
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
