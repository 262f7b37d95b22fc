"""/syncs, /watermarks, /markers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tidegate.admin.marker import list_markers
from tidegate.admin.status import SyncState, list_syncs, read_status
from tidegate.admin.watermark import ListedWatermark, list_watermarks
from tidegate.core.errors import DeclarationError
from tidegate.core.identity import Scope
from tidegate.core.relation import Relation
from tidegate.core.watermark import Watermark
from tidegate.service.openapi import PLAIN, no_nul, route, shown
from tidegate.service.problems import answer, invalid
from tidegate.service.request_context import Served, Service

router = APIRouter(tags=["syncs"])
_SYNC_EXAMPLE = {
    "sync": "orders",
    "source": "shop:public.orders",
    "target": "lake:raw.orders",
    "mode": "merge",
    "is_group": False,
    "state": "done",
    "job_id": "019a8f3c-1b2d-7c4e-9f10-2a3b4c5d6e7f",
    "last_run_at": "2026-11-02T03:00:12+00:00",
    "rows": 1200,
    "error": None,
    "watermark": "2026-11-02 02:59:58+00",
}


class ApiSync(BaseModel):
    """One sync; with `live` also its lag, its lock and what holds it back."""

    model_config = ConfigDict(extra="allow")

    sync: str
    source: str
    target: str
    mode: str
    state: SyncState
    last_run_at: datetime | None
    rows: int | None = Field(description="Of the latest run.")
    error: str | None
    watermark: str | None


class SyncList(BaseModel):
    """The syncs of the project, in the order in which they are declared."""

    project: str
    syncs: list[ApiSync]


@router.get(
    "/syncs",
    summary="How every sync stands",
    description="By what the control database knows. `live=true` also asks sources and targets how "
    "far behind each is, which takes longer; what cannot be reached is said and not raised.",
    response_model=SyncList,
    **route(
        Scope.READ,
        responses={200: shown("All of them.", {"project": "shop", "syncs": [_SYNC_EXAMPLE]})},
    ),
)
def get_syncs(
    service: Served,
    live: Annotated[bool, Query(description="Ask sources and targets as well.")] = False,
) -> Response:
    project = service.project
    found: list[Any]
    if live:
        expanded = project.expanded(from_ledger=True).syncs
        found = list(read_status(service.context, expanded).syncs)
    else:
        with service.control() as control:
            found = list(list_syncs(service.context, control, project.declared))
    return answer({"project": project.name, "syncs": found})


_WATERMARK_EXAMPLE = {
    "sync": "orders",
    "target": "lake:raw.orders",
    "declared": True,
    "problem": None,
    "watermark": "2026-11-02 02:59:58+00",
    "cursor_type": "timestamptz",
    "generation": 0,
    "version": 42,
    "rows": 4_200_000,
    "update_id": "f3a9…",
    "moved_at": "2026-11-02T03:00:12+00:00",
}


class ApiWatermark(BaseModel):
    """How far one sync has got; `problem` says why that could not be read."""

    sync: str
    target: str
    declared: bool
    problem: str | None
    watermark: str | None
    cursor_type: str | None
    generation: int
    version: int
    rows: int = Field(description="Loaded so far.")
    update_id: str | None
    moved_at: datetime | None


class WatermarkList(BaseModel):
    """The watermark of every sync, and those that undeclared ones left behind."""

    watermarks: list[ApiWatermark]


@router.get(
    "/watermarks",
    summary="How far each sync has got",
    description="Read from the ledgers of the targets; one that does not answer is said so.",
    response_model=WatermarkList,
    **route(
        Scope.READ, responses={200: shown("All of them.", {"watermarks": [_WATERMARK_EXAMPLE]})}
    ),
)
def get_watermarks(service: Served) -> Response:
    project = service.project
    syncs = {sync.name: sync for sync in project.expanded(from_ledger=True).syncs}
    found = list_watermarks(service.context, syncs, project.groups)
    return answer({"watermarks": [_document(one) for one in found]})


def _document(one: ListedWatermark) -> dict[str, Any]:
    at = one.watermark or Watermark("", "")
    return {
        "sync": one.sync,
        "target": one.target,
        "declared": one.declared,
        "problem": one.problem,
        "watermark": at.value,
        "cursor_type": at.cursor_type,
        "generation": at.generation,
        "version": at.version,
        "rows": at.rows_synced,
        "update_id": at.update_id,
        "moved_at": at.updated_at,
    }


_MARKER_EXAMPLE = {
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
    **route(Scope.READ, responses={200: shown("Some of them.", {"markers": [_MARKER_EXAMPLE]})}),
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
