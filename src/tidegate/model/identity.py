"""Identities: what makes two pieces of work the same work."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass

from tidegate.model.batch import Batch
from tidegate.model.relation import Relation


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """A database that keeps its identity when its address changes."""

    system: str
    database: str

    def __str__(self) -> str:
        return f"{self.system}/{self.database}"


def pipeline_name(project: str, sync: str) -> str:
    """The name under which a sync keeps its state; both parts may hold dots."""
    return f"{project}.{sync}"


def sync_of(project: str, pipeline: str) -> str:
    """The sync of a pipeline of this project."""
    return pipeline.removeprefix(f"{project}.")


def resource_name(database: DatabaseIdentity, relation: Relation) -> str:
    """What a job locks: one table, however many connection names lead to it."""
    return f"postgres:{database}/{relation}"


def load_update_id(
    *,
    pipeline: str,
    source: str,
    target: str,
    generation: int,
    version: int,
    batch: Batch,
) -> str:
    """The identity of a load: equal inputs give equal ids, on any machine, for ever."""
    content = json.dumps(
        [pipeline, source, target, generation, version, batch.identity],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    digest = hashlib.sha256(content.encode()).hexdigest()[:40]
    return f"{pipeline}-g{generation}-v{version}-{digest}"


def new_attempt_id() -> str:
    """A fresh attempt: uuid4 in hex."""
    return uuid.uuid4().hex
