"""A declared movement: source relation → destination relation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.model.cursor import NullPolicy
from tidegate.model.identity import pipeline_name
from tidegate.model.relation import Endpoint


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync as declared in tidegate.toml or with @tg.sync, names resolved, defaults applied."""

    project: str
    name: str
    source: Endpoint
    target: Endpoint
    mode: str = "merge"
    key: tuple[str, ...] | None = None
    cursor: str | None = None
    changes: str = "cursor"
    lookback: str | int | None = None
    settle_seconds: float = 60.0
    null_cursor: NullPolicy | None = None
    cursor_timezone: str | None = None
    duplicates: str = "refuse"
    batch_rows: int = 500_000
    partitions: int | None = None
    schedule: str | None = None
    transform: Callable[[Any], Any] | None = None

    @property
    def pipeline(self) -> str:
        return pipeline_name(self.project, self.name)
