"""/tables."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import unquote
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tidegate.core.errors import AmbiguousTable, DestinationError, UnknownTable
from tidegate.core.identity import Scope
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.table_actions import Action
from tidegate.jobs.job import JobStatus
from tidegate.maintenance.facts import TableFacts
from tidegate.maintenance.table_cache import Refresher
from tidegate.maintenance.table_report import (
    health_document,
    list_health,
    listing_document,
    table_document,
    table_health,
)
from tidegate.maintenance.tables import TableView, find_table, list_tables, table_status
from tidegate.postgres.connection import Connection
from tidegate.service import problems as kinds
from tidegate.service.openapi import Cursor, Limit, decode, encode, links, route, shown
from tidegate.service.problems import HttpProblem, answer
from tidegate.service.request_context import Served, Service
from tidegate.service.routes.control import audited


class _Named(BaseModel):
    model_config = ConfigDict(extra="allow")

    table: str = Field(description="As commands write it: lake:raw.orders.")
    catalog: str
    namespace: str
    name: str
    live: bool = Field(description="Read at this moment, as opposed to cached.")
    as_of: datetime | None = Field(description="For when this is known to be right.")
    stale: bool
    stale_since: datetime | None
    stale_reason: str | None


class ApiTable(_Named):
    """One table and what it is made of; `facts` is null while it was seen but never read."""

    facts: TableFacts | None


class ListedTable(ApiTable):
    """One table of a list."""

    state: Literal["good", "warning", "critical", "unknown"]


class ApiCatalog(BaseModel):
    """One lake, and when its tables were last looked at."""

    catalog: str
    refreshed_at: datetime | None
    tried_at: datetime | None
    error: str | None
    stale_since: datetime | None
    stale_reason: str | None


class TablePage(BaseModel):
    """Some tables in order, and how it stands with each lake."""

    tables: list[ListedTable]
    catalogs: list[ApiCatalog]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


class Refresh(BaseModel):
    """What one look at all lakes found."""

    catalogs: int
    read: int
    unchanged: int
    removed: int
    unreadable: int
    failed: int = Field(description="Lakes that did not answer; what is cached of them stays.")
    skipped: int = Field(description="Lakes that another process looks at.")


class ApiHealth(_Named):
    """What is not well with a table; `health` is null while it was never read."""

    state: Literal["good", "warning", "critical", "unknown"]
    health: dict[str, Any] | None


class ApiRecommendation(_Named):
    """What would be run now, and why."""

    automatic: bool = Field(description="Whether the project runs it by itself.")
    order: dict[Action, dict[str, Any]] | None
    recommendation: dict[str, Any]
    predicted: dict[Action, dict[str, Any]]


class PastJob(BaseModel):
    """One job of maintenance, and what it came to."""

    model_config = ConfigDict(extra="allow")

    job_id: UUID
    status: JobStatus
    dry_run: bool
    requested_by: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    order: dict[str, Any] | None
    predicted: dict[str, Any] | None
    actions: list[dict[str, Any]]


class HistoryAnswer(BaseModel):
    """What was done to a table, the newest first."""

    table: str
    jobs: list[PastJob]
    next_cursor: str | None
    next: str | None = Field(description="The address of the next page.")


_FACTS: dict[str, Any] = {
    "uuid": "0c6f…",
    "location": "file:///lake/raw/orders",
    "metadata_location": "file:///lake/raw/orders/metadata/00042.metadata.json",
    "format_version": 2,
    "snapshot_id": 8031,
    "snapshot_at": "2026-11-02T03:00:00+00:00",
    "snapshots": 120,
    "oldest_snapshot_at": "2026-10-20T03:00:00+00:00",
    "branches": 1,
    "tags": 0,
    "records": 4_200_000,
    "target_file_bytes": 536_870_912,
    "data": {"files": 240, "bytes": 96_000_000},
    "small": {"files": 240, "bytes": 96_000_000},
    "small_after": 1,
    "partitions": 1,
    "largest_partition_bytes": 96_000_000,
    "median_partition_bytes": 96_000_000,
    "position_deletes": {"files": 0, "bytes": 0},
    "position_deleted_rows": 0,
    "equality_deletes": {"files": 0, "bytes": 0},
    "equality_deleted_rows": 0,
    "dangling_delete_files": 0,
    "manifests": {"files": 120, "bytes": 900_000},
    "small_manifests": 120,
    "metadata_files": 42,
}
_NAMES = {
    "table": "lake:raw.orders",
    "catalog": "lake",
    "namespace": "raw",
    "name": "orders",
    "live": False,
    "as_of": "2026-11-02T03:09:00+00:00",
    "stale": False,
    "stale_since": None,
    "stale_reason": None,
}
# Through the model, so that what is added there is shown here.
EXAMPLE: dict[str, Any] = _NAMES | {"facts": TableFacts.read(_FACTS).document()}
PAGE_EXAMPLE = {
    "tables": [EXAMPLE | {"state": "warning"}],
    "catalogs": [
        {
            "catalog": "lake",
            "refreshed_at": "2026-11-02T03:09:00+00:00",
            "tried_at": "2026-11-02T03:09:00+00:00",
            "error": None,
            "stale_since": None,
            "stale_reason": None,
        }
    ],
    "next_cursor": None,
    "next": None,
}
REFRESHED = {
    "catalogs": 1,
    "read": 3,
    "unchanged": 12,
    "removed": 0,
    "unreadable": 0,
    "failed": 0,
    "skipped": 0,
}
HEALTH_EXAMPLE = _NAMES | {
    "state": "warning",
    "health": {
        "is_good": False,
        "issues": [
            {
                "name": "small_files",
                "severity": "warning",
                "message": "240 of 240 data files are small",
                "evidence": {"files": 240, "limit": 20},
                "action": "rewrite_data_files",
            }
        ],
    },
}
_EFFECT = {
    "of": "data files",
    "before": {"files": 240, "bytes": 96_000_000},
    "after": {"files": 1, "bytes": 95_000_000},
    "snapshots": None,
}
RECOMMENDATION_EXAMPLE = _NAMES | {
    "automatic": False,
    "order": {"rewrite_data_files": {"min_input_files": 5}},
    "recommendation": {
        "actions": [
            {
                "action": "rewrite_data_files",
                "run": True,
                "reason": "240 of 240 data files are small",
                "every_seconds": 3600.0,
                "skip": None,
            }
        ]
    },
    "predicted": {"rewrite_data_files": _EFFECT},
}
HISTORY_EXAMPLE = {
    "table": "lake:raw.orders",
    "jobs": [
        {
            "job_id": "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f",
            "status": "done",
            "dry_run": False,
            "requested_by": "token nightly (HTTP)",
            "submitted_at": "2026-11-02T03:10:00+00:00",
            "started_at": "2026-11-02T03:10:00.120000+00:00",
            "finished_at": "2026-11-02T03:10:21.480000+00:00",
            "error": None,
            "order": {"rewrite_data_files": {"min_input_files": 5}},
            "predicted": None,
            "actions": [{"action": "rewrite_data_files", "status": "done", "seconds": 18.1}],
        }
    ],
    "next_cursor": None,
    "next": None,
}
PREDICTED_EXAMPLE = {"rewrite_data_files": _EFFECT}


router = APIRouter(prefix="/tables", tags=["tables"])
TABLE = (kinds.TABLE_NOT_FOUND, kinds.TABLE_AMBIGUOUS)


class TableName:
    """A table as a path names it; slashes and the like are percent-encoded there."""

    def __init__(
        self,
        db: Annotated[
            str, Path(description="The namespace, or lake:namespace where several lakes have it.")
        ],
        table: Annotated[str, Path(description="The table.")],
    ) -> None:
        self.db, self.table = unquote(db), unquote(table)

    def find(self, service: Service, control: Connection) -> TableView:
        """The table in the cache; Problem when there is none, or several."""
        if "\0" in self.db + self.table:
            raise HttpProblem(kinds.TABLE_NOT_FOUND, "no name holds a NUL character")
        try:
            return find_table(service.context, control, self.db, self.table)
        except UnknownTable as error:
            raise HttpProblem(kinds.TABLE_NOT_FOUND, error.message, hint=error.hint) from None
        except AmbiguousTable as error:
            raise HttpProblem(
                kinds.TABLE_AMBIGUOUS, error.message, hint=error.hint, choices=list(error.choices)
            ) from None


Table = Annotated[TableName, Depends()]


@router.get(
    "",
    summary="The tables of the lakes, in order",
    description="As they were when last looked at; `stale` says when that may be wrong.",
    response_model=TablePage,
    **route(Scope.READ, responses={200: shown("One page.", PAGE_EXAMPLE)}),
)
def get_tables(
    request: Request, service: Served, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    since = service.kept.changes
    after = None if cursor is None else _place(cursor)
    with service.control() as control:
        found = list_tables(service.context, control, after=after, limit=limit)
        health = list_health(service.context, control, found.tables)
    words = {str(one.table.target): one.word for one in health}
    last = found.next
    next_cursor = (
        None
        if last is None
        else encode((last.connection, last.relation.schema, last.relation.name))
    )
    fields, headers = links(request, next_cursor)
    return service.keep(
        request, answer(listing_document(found, words) | fields, headers=headers), since
    )


@router.post(
    "/refresh",
    summary="Look at the lakes again now",
    description="A lake that another process refreshes at this moment is skipped.",
    response_model=Refresh,
    **route(Scope.SUBMIT, changes=True, responses={200: shown("What was found.", REFRESHED)}),
)
def refresh(request: Request, service: Served) -> Response:
    with service.control() as control:
        done = Refresher(service.context).run_once(control)
        audited(request, control, "refreshed", object=None)
    return answer(done)


@router.get(
    "/{db}/{table}/status",
    summary="What a table is made of now",
    description="Read from its metadata at this moment, and put into the cache.",
    response_model=ApiTable,
    **route(
        Scope.READ,
        *TABLE,
        kinds.UNREADABLE,
        responses={200: shown("The table.", EXAMPLE | {"live": True})},
    ),
)
def get_status(service: Served, name: Table) -> Response:
    with service.control() as control:
        found = name.find(service, control)
        return answer(table_document(live(service, control, found)))


@router.get(
    "/{db}/{table}/status/cached",
    summary="What a table was made of when last looked at",
    response_model=ApiTable,
    **route(Scope.READ, *TABLE, responses={200: shown("The table.", EXAMPLE)}),
)
def get_cached_status(request: Request, service: Served, name: Table) -> Response:
    since = service.kept.changes
    with service.control() as control:
        found = answer(table_document(name.find(service, control)))
    return service.keep(request, found, since)


@router.get(
    "/{db}/{table}/health",
    summary="What is not well with a table",
    response_model=ApiHealth,
    **route(
        Scope.READ,
        *TABLE,
        kinds.UNREADABLE,
        responses={200: shown("Its issues, with evidence.", HEALTH_EXAMPLE)},
    ),
)
def get_health(
    service: Served,
    name: Table,
    fresh: Annotated[
        bool, Query(alias="live", description="Read the table now instead of the cache.")
    ] = False,
) -> Response:
    with service.control() as control:
        found = name.find(service, control)
        if fresh:
            found = live(service, control, found)
        return answer(health_document(table_health(service.context, control, found)))


def live(service: Service, control: Connection, table: TableView) -> TableView:
    """The table as it is now; Problem when it cannot be read or is gone."""
    try:
        with reading(table.target):
            return table_status(service.context, control, table, live=True)
    finally:
        # It is in the cache now, or is not there any more.
        service.kept.forget()


class reading:  # noqa: N801
    """What goes wrong in a lake is told as its own kind of problem."""

    def __init__(self, target: Endpoint) -> None:
        self._target = target

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UnknownTable):
            raise HttpProblem(kinds.TABLE_NOT_FOUND, error.message, hint=error.hint) from None
        if isinstance(error, DestinationError):
            raise HttpProblem(kinds.UNREADABLE, error.message, hint=error.hint) from None
        if isinstance(error, OSError):
            raise HttpProblem(
                kinds.UNREADABLE, f"the files of {self._target} cannot be read"
            ) from error


def _place(cursor: str) -> Endpoint:
    catalog, namespace, name = decode(cursor, 3)
    if "\0" in catalog + namespace + name:
        return Endpoint("", Relation("", ""))
    return Endpoint(catalog, Relation(namespace, name))
