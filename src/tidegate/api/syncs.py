"""`/syncs`: what is loaded from where to where, and how it went."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.service import Served
from tidegate.insight.status import State, read_status
from tidegate.insight.sync_lines import list_syncs
from tidegate.model.access import Scope

router = APIRouter(tags=["syncs"])
_EXAMPLE = {
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
    state: State
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
        responses={200: shown("All of them.", {"project": "shop", "syncs": [_EXAMPLE]})},
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
