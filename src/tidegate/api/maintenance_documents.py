"""What maintenance is asked for with, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from tidegate.api.job_documents import EXAMPLE as JOB_EXAMPLE
from tidegate.api.job_documents import ApiJob
from tidegate.api.table_documents import PREDICTED_EXAMPLE
from tidegate.model.maintenance import Action
from tidegate.runtime.submitting import PRIORITIES
from tidegate.settings.maintenance import ACTION_OPTIONS

_MOST = 20
_ACTIONS = {
    "type": "array",
    "minItems": 1,
    "maxItems": _MOST,
    "items": {"type": "string", "enum": [one.value for one in Action]},
}
_OPTIONS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        action.value: model.model_json_schema() | {"title": action.value}
        for action, model in ACTION_OPTIONS.items()
    },
}
HEADERS = {
    "Location": {"description": "Where the job is.", "schema": {"type": "string"}},
    "Idempotent-Replay": {
        "description": "`true` when the key had been used before: this is the job it got then.",
        "schema": {"type": "string"},
    },
}


class MaintenanceWish(BaseModel):
    """What is to be done to a table."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "actions": ["expire_snapshots", "rewrite_data_files"],
                    "options": {"expire_snapshots": {"older_than": "5 days", "retain_last": 3}},
                    "dry_run": False,
                }
            ]
        },
    )

    # Names and values are looked at later, so that a message can say which there are.
    actions: Annotated[list[str], Field(max_length=_MOST), WithJsonSchema(_ACTIONS)]
    options: Annotated[dict[str, dict[str, Any]], WithJsonSchema(_OPTIONS)] = Field(
        default_factory=dict, max_length=_MOST
    )
    dry_run: bool = False
    priority: int = Field(0, ge=PRIORITIES[0], le=PRIORITIES[-1], description="Higher ones first.")


class MaintenanceJob(BaseModel):
    """The job that was queued, or the dry run that is done."""

    job_id: UUID
    dry_run: bool
    predicted: dict[str, Any] | None = Field(description="Of a dry run: each action's effect.")
    job: ApiJob


EXAMPLE = {
    "job_id": JOB_EXAMPLE["job_id"],
    "dry_run": True,
    "predicted": PREDICTED_EXAMPLE,
    "job": JOB_EXAMPLE,
}
