"""Names of staging tables: they carry the control plane, the attempt and the writer call."""

from __future__ import annotations

import uuid
from uuid import UUID


def new_write_id() -> str:
    """The identity of one writer call; partition and attempt numbers repeat, this does not."""
    return uuid.uuid4().hex[:28]


def staging_prefix(control_id: UUID, attempt_id: str | None = None) -> str:
    """What the names of a control plane's, or of one attempt's, staging tables start with."""
    prefix = f"stg_{control_id.hex[:12]}_"
    return prefix if attempt_id is None else f"{prefix}{attempt_id[:16]}_"


def staging_table(control_id: UUID, attempt_id: str, write_id: str) -> str:
    return f"{staging_prefix(control_id, attempt_id)}{write_id}"
