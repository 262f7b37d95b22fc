"""An action's table, attempt and engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from tidegate.config import Settings, SparkSettings
from tidegate.core.errors import DestinationError
from tidegate.core.relation import Relation
from tidegate.core.table_actions import (
    Action,
    ActionOptions,
    Effect,
    RewriteDataFiles,
    RewritePositionDeleteFiles,
)
from tidegate.iceberg.catalog import Catalog, backticked, literal
from tidegate.iceberg.engines import Engine, SparkEngine, ThriftEngine
from tidegate.jobs.job import Claim
from tidegate.load.context import Context
from tidegate.load.engine import Attempt
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.maintenance.facts import TableFacts, read_facts
from tidegate.maintenance.prediction import predict
from tidegate.spark.session import SparkSessions


def expire_snapshots(
    catalog: Catalog, relation: Relation, older_than: datetime, retain_last: int
) -> str:
    return _call(
        catalog,
        relation,
        "expire_snapshots",
        older_than=_timestamp(older_than),
        retain_last=str(int(retain_last)),
    )


def find_orphan_files(catalog: Catalog, relation: Relation, older_than: datetime) -> str:
    """Only told, never removed: what goes is decided here, file by file."""
    return _call(
        catalog,
        relation,
        "remove_orphan_files",
        older_than=_timestamp(older_than),
        dry_run="true",
    )


def rewrite_data_files(
    catalog: Catalog, relation: Relation, options: RewriteDataFiles, *, dangling: bool = False
) -> str:
    """With `dangling`, delete files that have nothing left to delete go as well."""
    given = {"min-input-files": str(options.min_input_files)}
    if options.target_file_bytes is not None:
        given["target-file-size-bytes"] = str(options.target_file_bytes)
    if options.delete_file_threshold:
        given["delete-file-threshold"] = str(options.delete_file_threshold)
    if options.partial_progress:
        given["partial-progress.enabled"] = "true"
    if dangling:
        given["remove-dangling-deletes"] = "true"
    strategy = "sort" if options.sort else "binpack"
    return _call(
        catalog,
        relation,
        "rewrite_data_files",
        strategy=literal(strategy),
        options=_map(given),
    )


def rewrite_position_delete_files(
    catalog: Catalog,
    relation: Relation,
    options: RewritePositionDeleteFiles,
    *,
    everything: bool = False,
) -> str:
    """With `everything`, single files and large ones too: what they delete in vain is left out."""
    given = {"min-input-files": str(options.min_input_files)}
    if everything:
        given["rewrite-all"] = "true"
    return _call(catalog, relation, "rewrite_position_delete_files", options=_map(given))


def rewrite_manifests(catalog: Catalog, relation: Relation) -> str:
    return _call(catalog, relation, "rewrite_manifests")


def _call(catalog: Catalog, relation: Relation, procedure: str, **arguments: str) -> str:
    given = {"table": literal(catalog.procedure_name(relation)), **arguments}
    texts = ", ".join(f"{name} => {value}" for name, value in given.items())
    return f"CALL {backticked(catalog.name)}.system.{procedure}({texts})"


def _map(values: Mapping[str, str]) -> str:
    return f"map({', '.join(literal(word) for pair in values.items() for word in pair)})"


def _timestamp(moment: datetime) -> str:
    """With its zone, whatever that of the session is; Iceberg counts in milliseconds."""
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return f"TIMESTAMP '{text} UTC'"


# How Iceberg, or our trigger in its catalog, says that somebody else has committed first.
_CONFLICTS = (
    "CommitFailedException",
    "ValidationException",
    "another commit came first",
    "Found conflicting",
)
# Or that it does not know what became of a commit: who does the work again finds out.
_LOST = ("CommitStateUnknownException", "UncheckedSQLException", "I/O error occurred while sending")


def is_transient(error: BaseException) -> bool:
    """Whether doing it again, upon what the table is by now, can help."""
    # An engine's error may be our own words, with all of the engine's behind it.
    said = f"{error}\n{error.__cause__ or ''}"
    return any(text in said for text in (*_CONFLICTS, *_LOST))


class MaintainingAttempt(Attempt, Protocol):
    """The hold that an attempt has on its job, as far as maintenance needs it."""

    @property
    def claim(self) -> Claim: ...

    def record(self, action: str, detail: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class ActionContext:
    """A table, who holds it, and what works on it."""

    context: Context
    destination: IcebergTarget
    engine: Engine
    attempt: MaintainingAttempt

    @property
    def catalog(self) -> Catalog:
        return self.destination.catalog

    @property
    def relation(self) -> Relation:
        return self.destination.relation

    def call(self, statement: str) -> dict[str, Any]:
        """What a procedure says of itself, in one row."""
        fence = self.attempt.fence
        with self.engine.session(self.catalog, fence.attempt_id) as session:
            return next(iter(session.run(statement)), {})

    def facts(self) -> TableFacts:
        """What the table is made of now."""
        found = read_facts(self.catalog, self.relation)
        if found is None:
            raise DestinationError(f"{self.relation} was dropped meanwhile")
        return found

    def predict(self, action: Action, options: ActionOptions, **bounds: Any) -> Effect:
        """What an action will do to the table as it is now."""
        now = bounds.pop("now", None) or self.now()
        return predict(self.catalog, self.relation, action, options, now=now, **bounds)

    def now(self) -> datetime:
        """By the clock that decides all else."""
        with self.destination.open() as connection:
            row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        found: datetime = row[0]
        return found


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What came of an action: what its procedure told, and what a person should know."""

    told: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: str | None = None
    """why nothing was to be done"""


@dataclass(frozen=True, slots=True)
class ActionStep:
    """An action that is about to be done: what it will do, and how it can be told afterwards."""

    predicted: Effect
    do: Callable[[], ActionResult]
    actual: Callable[[ActionResult], Effect]


def engine_of(context: Context) -> Engine:
    """What `maintenance.engine` says; without it the project's own Spark.

    It is the same one every time, since it knows what it could interrupt.
    """
    address = context.settings.maintenance.engine
    if address is None:
        return SparkEngine(context.spark)
    if context.engine is None:
        context.engine = _engine(context.settings, address)
    return context.engine


def _engine(settings: Settings, address: str) -> Engine:
    if address.startswith("thrift://"):
        return ThriftEngine(address)
    # [spark] may be a Spark of this process.
    remote = SparkSettings(remote=address)
    return SparkEngine(SparkSessions(remote, settings.state_directory, beside=True))
