"""`/watermarks`: how far each sync has got."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from tidegate.api.answers import answer
from tidegate.api.documentation import route, shown
from tidegate.api.service import Served
from tidegate.insight.watermarks import ListedWatermark, list_watermarks
from tidegate.model.access import Scope
from tidegate.model.watermark import Watermark

router = APIRouter(tags=["syncs"])
_EXAMPLE = {
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
    **route(Scope.READ, responses={200: shown("All of them.", {"watermarks": [_EXAMPLE]})}),
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
