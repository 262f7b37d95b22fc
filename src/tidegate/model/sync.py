"""A declared movement: source relation → destination relation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import TidegateError
from tidegate.model.cursor import NullPolicy
from tidegate.model.identity import pipeline_name
from tidegate.model.layout import Layout
from tidegate.model.relation import Endpoint
from tidegate.model.rules import Check, Drift, Duplicates, Mode, RemovalLimit, Rules


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync as declared in tidegate.toml or with @tg.sync, names resolved, defaults applied."""

    project: str
    name: str
    source: Endpoint
    target: Endpoint
    mode: Mode = Mode.MERGE
    key: tuple[str, ...] | None = None
    cursor: str | None = None
    changes: str = "cursor"
    deletes: str = "hard"
    """what becomes of rows that the source deletes, where its changes tell of them"""
    lookback: str | int | None = None
    settle_seconds: float = 60.0
    null_cursor: NullPolicy | None = None
    cursor_timezone: str | None = None
    duplicates: Duplicates = Duplicates.REFUSE
    batch_rows: int = 500_000
    partitions: int | None = None
    schedule: str | None = None
    timezone: str = "UTC"
    catch_up: str = "last"
    priority: int = 0
    resources: tuple[str, ...] = ()
    """named resources of which a run takes a place"""
    disable_after: int | None = None
    columns: tuple[str, ...] | None = None
    exclude_columns: tuple[str, ...] = ()
    where: str | None = None
    query: str | None = None
    before_sql: tuple[str, ...] = ()
    after_sql: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    reject_limit: float = 0.05
    drift: Drift = Drift.EVOLVE
    max_removed: float = 1.0
    """the share of the target that may be removed unasked"""
    layout: Layout = field(default_factory=Layout)
    lake_source: bool = False
    lake_target: bool = False
    """whether the target is a table of a lake, as opposed to one of a database"""
    transform: Callable[[Any], Any] | None = None
    group: str | None = None
    """the group that it is one table of"""
    proposed: frozenset[str] = frozenset()
    """what nobody declared: `key`, `cursor` or `null_cursor` chosen from the catalog"""
    notes: tuple[str, ...] = ()
    refused: TidegateError | None = None
    """why it cannot be run, known before anything is read"""

    @property
    def pipeline(self) -> str:
        return pipeline_name(self.project, self.name)

    @property
    def is_soft(self) -> bool:
        """Whether rows that the source deletes stay, with a mark."""
        return self.changes == "cdc" and self.deletes == "soft"

    @property
    def source_name(self) -> str:
        """The source as a person would call it."""
        return f"{self.source.connection}:(query)" if self.query else str(self.source)

    @property
    def rules(self) -> Rules:
        refresh = "" if self.mode is Mode.REPLACE else " --full-refresh"
        return Rules(
            mode=self.mode,
            duplicates=self.duplicates,
            before_sql=self.before_sql,
            after_sql=self.after_sql,
            checks=self.checks,
            reject_limit=self.reject_limit,
            drift=self.drift,
            removal=self.removal_limit(f"tidegate run {self.name}{refresh} --allow-removal"),
        )

    def removal_limit(self, allow: str) -> RemovalLimit | None:
        """How much of the target may go; `allow` is the command that says that more is meant."""
        return RemovalLimit.of(self.max_removed, allow)
