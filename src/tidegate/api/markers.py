"""`/markers`: which loads are in which tables."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, BaseModel

from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.problems import invalid
from tidegate.api.service import Served, Service
from tidegate.api.texts import PLAIN, no_nul
from tidegate.errors import DeclarationError
from tidegate.insight.markers import list_markers
from tidegate.model.access import Scope
from tidegate.model.relation import Relation

router = APIRouter(tags=["syncs"])
_EXAMPLE = {
    "connection": "lake",
    "table": "raw.orders",
    "update_id": "f3a9…",
    "inserted": "2026-11-02 03:00:12+00",
}


class ApiMarker(BaseModel):
    """One load that is in; without a table it counts for every one."""

    connection: str
    table: str | None
    update_id: str
    inserted: str | None


class MarkerList(BaseModel):
    """The newest loads."""

    markers: list[ApiMarker]


@router.get(
    "/markers",
    summary="Which loads are in, the newest first",
    response_model=MarkerList,
    **route(Scope.READ, responses={200: shown("Some of them.", {"markers": [_EXAMPLE]})}),
)
def get_markers(
    service: Served,
    connection: Annotated[
        str | None, Query(description="Only these; by default all that a sync loads into.")
    ] = None,
    table: Annotated[
        str | None,
        AfterValidator(lambda text: text and no_nul(text)),
        Query(description="Only this table, as schema.table.", json_schema_extra=PLAIN),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
) -> Response:
    names = _names(service, connection)
    relation = None if table is None else _relation(table)
    found = [
        (name, row)
        for name in names
        for row in list_markers(service.context, name, relation, limit)
    ]
    found.sort(key=lambda one: one[1].inserted or "", reverse=True)
    return answer(
        {
            "markers": [
                {
                    "connection": name,
                    "table": row.target_table,
                    "update_id": row.update_id,
                    "inserted": row.inserted,
                }
                for name, row in found[:limit]
            ]
        }
    )


def _names(service: Service, given: str | None) -> list[str]:
    known = list(service.context.settings.connections)
    if given is None:
        return service.project.destinations
    if given not in known:
        raise invalid(
            [{"field": "connection", "in": "query", "message": "unknown", "known": known}]
        )
    return [given]


def _relation(text: str) -> Relation:
    try:
        return Relation.parse(text)
    except DeclarationError as error:
        message = f"{error.message}: {error.hint}"
        raise invalid([{"field": "table", "in": "query", "message": message}]) from None
