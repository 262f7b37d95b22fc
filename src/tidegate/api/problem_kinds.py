"""Every kind of problem that the service tells of, by a name that stays (RFC 9457)."""

from __future__ import annotations

from dataclasses import dataclass


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
