"""Update_id, job and attempt ids, names of staging tables and sessions, token scopes."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from tidegate.core.batch import Batch
from tidegate.core.relation import Relation

_making_a_job = threading.Lock()
_last_job = 0


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


def task_digest(parameters: str, target: str | None) -> str:
    """What tells runs of one task apart: its parameters, written down, and where its rows go."""
    content = json.dumps([parameters, target], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:40]


def task_update_id(
    project: str, task: str, parameters: str, target: str | None, generation: int = 1
) -> str:
    """The identity of one run of a task: the same parameters give the same id, for ever."""
    return f"{project}.{task}-g{generation}-{task_digest(parameters, target)}"


def new_attempt_id() -> str:
    """A fresh attempt: uuid4 in hex."""
    return uuid.uuid4().hex


def new_job_id() -> uuid.UUID:
    """A fresh job: a version 7 UUID, so that jobs sort in the order in which they were made."""
    global _last_job
    with _making_a_job:
        # 48 bits of milliseconds, and 12 that count on within one of them.
        _last_job = max(time.time_ns() // 1_000_000 << 12, _last_job + 1)
        moment = _last_job
    noise = secrets.randbits(62)
    return uuid.UUID(
        int=(moment >> 12) << 80 | 0x7 << 76 | (moment & 0xFFF) << 64 | 0x2 << 62 | noise
    )


def new_write_id() -> str:
    """The identity of one writer call; partition and attempt numbers repeat, this does not."""
    return uuid.uuid4().hex[:28]


def staging_prefix(control_id: UUID, attempt_id: str | None = None) -> str:
    """What the names of a control plane's, or of one attempt's, staging tables start with."""
    prefix = f"stg_{control_id.hex[:12]}_"
    return prefix if attempt_id is None else f"{prefix}{attempt_id[:16]}_"


def staging_table(control_id: UUID, attempt_id: str, write_id: str) -> str:
    return f"{staging_prefix(control_id, attempt_id)}{write_id}"


class Scope(StrEnum):
    """What a token allows."""

    EVENTS = "events"
    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def allows(self, wanted: Scope) -> bool:
        """Whether this is enough for that; who only sends events sees nothing.

        >>> Scope.SUBMIT.allows(Scope.READ), Scope.EVENTS.allows(Scope.READ)
        (True, False)
        """
        return wanted is self or wanted in _INCLUDED.get(self, ())


_INCLUDED = {
    Scope.SUBMIT: frozenset({Scope.EVENTS, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
}
