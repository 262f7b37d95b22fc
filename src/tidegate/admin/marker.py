"""List, touch, forget."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from psycopg import errors as pg

from tidegate.config.task import TaskRun
from tidegate.core.errors import UsageError
from tidegate.core.relation import Endpoint, Relation
from tidegate.iceberg.metadata import read_table
from tidegate.ledger.iceberg import Intent, Intents
from tidegate.ledger.markers import MarkerRow, Markers
from tidegate.load.context import Context
from tidegate.load.modes import MODES, Request
from tidegate.load.targets.iceberg.recovery import record_published
from tidegate.postgres.connection import Connection
from tidegate.postgres.queries import statement
from tidegate.tasks.runner import TaskMarkers


@dataclass(frozen=True, slots=True)
class Marker:
    """The mark of one load in one table.

    >>> marker = project.marker("warehouse:marts.x", update_id="x-1")      # doctest: +SKIP
    >>> if not marker.exists():                                            # doctest: +SKIP
    ...     with project.connect("warehouse") as connection, connection.transaction():
    ...         connection.execute("…")
    ...         marker.touch(connection)
    """

    context: Context
    target: Endpoint
    update_id: str

    def exists(self) -> bool:
        """Whether the load is in; False as well where no ledger exists yet."""
        with self.context.databases.connect(self.target.connection) as connection:
            if self._markers().exists(connection, self.update_id, self.target.relation):
                return True
            intents = _intents_of(connection, self.context, self.target, self.update_id)
        # Killed after its commit, a load is in a lake before it is in the ledger.
        return bool(intents) and _is_in_lake(self.context, self.target, self.update_id)

    def touch(self, connection: Connection) -> bool:
        """Record the load inside the transaction of `connection`; False if it was there before."""
        return self._markers().touch(connection, self.update_id, self.target.relation)

    def _markers(self) -> Markers:
        return Markers(self.context.ledger(self.target.connection))


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was forgotten; `pipelines` are the syncs whose load it was."""

    tables: list[str]
    pipelines: list[str]
    still_in: bool = False
    """whether the table itself says that the load is in, as a lake's does"""


def list_markers(
    context: Context, connection_name: str, table: Relation | None = None, limit: int = 50
) -> list[MarkerRow]:
    """The newest markers in one destination database."""
    with context.databases.connect(connection_name) as connection:
        return Markers(context.ledger(connection_name)).newest(connection, table, limit)


def forget_marker(context: Context, target: Endpoint, update_id: str) -> Forgotten:
    """Remove a marker, so that its load counts as not done."""
    markers = Markers(context.ledger(target.connection))
    with context.databases.connect(target.connection) as connection, connection.transaction():
        pipelines = _pipelines_of(connection, context, target, update_id)
        tables = markers.forget(connection, update_id, target.relation)
        if _intents_of(connection, context, target, update_id):
            Intents(markers.ledger).settle(connection, str(target.relation), update_id)
            tables = tables or [str(target.relation)]
        if not tables and markers.exists(connection, update_id, target.relation):
            # It is there under a looser spelling, as Luigi's users write it: there the update_id
            # alone is the key, so it can be no other table's.
            tables = [table or "(any)" for table in markers.forget(connection, update_id)]
            if len(tables) != 1:
                raise UsageError(
                    f"{update_id!r} marks several tables: {', '.join(tables)}",
                    "name one of them, as: tidegate marker list shows it",
                )
    if not tables:
        raise UsageError(
            f"there is no marker {update_id!r} for {target}",
            f"see: tidegate marker list {target.connection}",
        )
    still_in = context.is_lake(target.connection) and _is_in_lake(context, target, update_id)
    return Forgotten(tables, pipelines, still_in)


def touch_marker(context: Context, target: Endpoint, update_id: str) -> bool:
    """Record a load that is in; False where it was recorded before.

    Where a lake's load was about to be published, its watermark moves as it would have.
    """
    ledger = context.ledger(target.connection)
    ledger.ensure()
    with context.databases.connect(target.connection) as connection, connection.transaction():
        waiting = _intents_of(connection, context, target, update_id)
        if not waiting:
            return Markers(ledger).touch(connection, update_id, target.relation)
        known = Markers(ledger).exists(connection, update_id, target.relation)
        # Somebody's word, where the table itself cannot tell any more.
        record_published(connection, ledger, target.relation, waiting[-1])
        return not known


def _intents_of(
    connection: Connection, context: Context, target: Endpoint, update_id: str
) -> list[Intent]:
    """What a lake's ledger says that was about to be published under this name."""
    if not context.is_lake(target.connection):
        return []
    intents = Intents(context.ledger(target.connection))
    with connection.transaction():
        found = intents.of_table(connection, str(target.relation))
    return [intent for intent in found if intent.update_id == update_id]


def _is_in_lake(context: Context, target: Endpoint, update_id: str) -> bool:
    table = read_table(context.catalog(target.connection), target.relation)
    return table is not None and table.holds(update_id)


def _pipelines_of(
    connection: Connection, context: Context, target: Endpoint, update_id: str
) -> list[str]:
    ledger = context.ledger(target.connection)
    try:
        with connection.transaction():
            rows = connection.execute(
                statement("admin/pipelines", "pipelines_of_load", schema=ledger.schema_identifier),
                {"update_id": update_id, "table": str(target.relation)},
            ).fetchall()
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        return []
    return [row[0] for row in rows]


def forget_task(context: Context, run: TaskRun) -> None:
    """Forget that a run is complete; refuses what doing it again would not leave right."""
    task = run.task
    if task.complete is not None:
        raise UsageError(
            f"task {run} is complete when its complete function says so, not by a marker",
            "take away what that function looks for, then run it",
        )
    if task.target is None:
        context.control_id()
        with context.plane.connect() as control:
            TaskMarkers(context.plane).forget(control, run)
        return
    refused = MODES[task.mode].refused(
        Request.FORGET_TASK, task.key, task=run, target=task.target, update_id=run.update_id
    )
    if refused is not None:
        raise UsageError(*refused)
    if context.is_lake(task.target.connection):
        raise UsageError(
            f"task {run} has published into {task.target}, and a lake's table itself says what is "
            "in it",
            "give the task another name or another parameter",
        )
    with suppress(UsageError):  # it was not complete
        forget_marker(context, task.target, run.update_id)
