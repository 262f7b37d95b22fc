"""`/tables`: the tables of the project's lakes, cached and live."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from tidegate.api import problem_kinds as kinds
from tidegate.api import table_documents as documents
from tidegate.api.answers import answer
from tidegate.api.audit import audited
from tidegate.api.documentation import route, shown
from tidegate.api.paging import Cursor, Limit, decode, encode, links
from tidegate.api.problems import Problem
from tidegate.api.service import Served, Service
from tidegate.api.table_documents import ApiHealth, ApiTable, Refresh, TablePage
from tidegate.errors import AmbiguousTable, DestinationError, UnknownTable
from tidegate.insight.table_documents import health_document, listing_document, table_document
from tidegate.insight.table_health import list_health, table_health
from tidegate.insight.tables import TableView, find_table, list_tables, table_status
from tidegate.model.access import Scope
from tidegate.model.relation import Endpoint, Relation
from tidegate.postgres.connect import Connection
from tidegate.runtime.refreshing import Refresher

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
            raise Problem(kinds.TABLE_NOT_FOUND, "no name holds a NUL character")
        try:
            return find_table(service.context, control, self.db, self.table)
        except UnknownTable as error:
            raise Problem(kinds.TABLE_NOT_FOUND, error.message, hint=error.hint) from None
        except AmbiguousTable as error:
            raise Problem(
                kinds.TABLE_AMBIGUOUS, error.message, hint=error.hint, choices=list(error.choices)
            ) from None


Table = Annotated[TableName, Depends()]


@router.get(
    "",
    summary="The tables of the lakes, in order",
    description="As they were when last looked at; `stale` says when that may be wrong.",
    response_model=TablePage,
    **route(Scope.READ, responses={200: shown("One page.", documents.PAGE_EXAMPLE)}),
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
    **route(
        Scope.SUBMIT, changes=True, responses={200: shown("What was found.", documents.REFRESHED)}
    ),
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
        responses={200: shown("The table.", documents.EXAMPLE | {"live": True})},
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
    **route(Scope.READ, *TABLE, responses={200: shown("The table.", documents.EXAMPLE)}),
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
        responses={200: shown("Its issues, with evidence.", documents.HEALTH_EXAMPLE)},
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
            raise Problem(kinds.TABLE_NOT_FOUND, error.message, hint=error.hint) from None
        if isinstance(error, DestinationError):
            raise Problem(kinds.UNREADABLE, error.message, hint=error.hint) from None
        if isinstance(error, OSError):
            raise Problem(
                kinds.UNREADABLE, f"the files of {self._target} cannot be read"
            ) from error


def _place(cursor: str) -> Endpoint:
    catalog, namespace, name = decode(cursor, 3)
    if "\0" in catalog + namespace + name:
        return Endpoint("", Relation("", ""))
    return Endpoint(catalog, Relation(namespace, name))
