"""Watermarks: how far each pipeline has got (`etl_state`), and every move (`watermark_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from tidegate.errors import UsageError, WatermarkMoved
from tidegate.ledger.ledger import Ledger
from tidegate.model.cursor import CursorType
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.identifiers import statement


@dataclass(frozen=True, slots=True)
class Move:
    """One line of the log."""

    moved_at: datetime
    generation: int
    version: int
    old: str | None
    new: str | None
    rows: int | None
    update_id: str | None
    moved_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Reads and moves the watermarks of one ledger."""

    ledger: Ledger

    def get(self, connection: Connection, pipeline: str, table: str) -> Watermark:
        """The watermark; a pipeline that never ran has an empty one."""
        try:
            row = connection.execute(
                self._statement("get_state"), {"pipeline": pipeline, "table": table}
            ).fetchone()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            row = None
        return _watermark(row) if row else Watermark(pipeline, table)

    def of_project(self, connection: Connection, project: str) -> list[Watermark]:
        prefix = project.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + ".%"
        try:
            rows = connection.execute(self._statement("list_states"), {"prefix": prefix}).fetchall()
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [_watermark(row) for row in rows]

    def ensure(
        self,
        connection: Connection,
        pipeline: str,
        table: str,
        cursor_type: str | None,
        declaration: Mapping[str, Any] | None = None,
    ) -> None:
        connection.execute(
            self._statement("create_state"),
            {
                "pipeline": pipeline,
                "table": table,
                "cursor_type": cursor_type,
                "declaration": _json(declaration),
            },
        )

    def move(
        self,
        connection: Connection,
        before: Watermark,
        after: Watermark,
        *,
        cursor_type: CursorType | None,
        fence: int,
        attempt_id: str,
        moved_by: str,
        reason: str,
        declaration: Mapping[str, Any] | None = None,
        rows: int | None = None,
        is_load: bool = True,
    ) -> None:
        """Compare-and-set inside the load's transaction; never down.

        The log tells how many more rows are recorded, or `rows` where that is not the same. A load
        is named in it once, and not again by a move that is none.
        """
        position = None if after.position is None else Jsonb(list(after.position))
        moved = connection.execute(
            self._statement("move_state", cursor_type),
            {
                "pipeline": after.pipeline,
                "table": after.table,
                "value": after.value,
                "cursor_type": None if cursor_type is None else cursor_type.value,
                "ordered": cursor_type is not None,
                "position": position,
                "rows": after.rows_synced - before.rows_synced,
                "update_id": after.update_id,
                "fence": fence,
                "version": before.version,
                "generation": before.generation,
                "declaration": _json(declaration),
            },
        ).rowcount
        if moved != 1:
            raise WatermarkMoved(
                f"the watermark of {after.pipeline} moved while this load was under way",
                "it is planned again from where it stands now",
            )
        self._log(
            connection,
            before,
            after,
            rows=after.rows_synced - before.rows_synced if rows is None else rows,
            attempt_id=attempt_id,
            fence=fence,
            moved_by=moved_by,
            reason=reason,
            **({} if is_load else {"update_id": None}),
        )

    def reset(
        self,
        connection: Connection,
        current: Watermark,
        value: str | None,
        *,
        cursor_type: CursorType | None,
        new_generation: bool,
        moved_by: str,
        reason: str,
        declaration: Mapping[str, Any] | None = None,
    ) -> Watermark:
        """A person's move, in the caller's transaction; running loads will fail their compare."""
        self.ensure(connection, current.pipeline, current.table, None)
        row = connection.execute(
            self._statement("reset_state"),
            {
                "pipeline": current.pipeline,
                "table": current.table,
                "value": value,
                "cursor_type": None if cursor_type is None else cursor_type.value,
                "generations": 1 if new_generation else 0,
                "declaration": _json(declaration),
            },
        ).fetchone()
        assert row is not None
        after = Watermark(current.pipeline, current.table, value, generation=row[0], version=row[1])
        self._log(
            connection,
            current,
            after,
            rows=None,
            attempt_id=None,
            fence=None,
            moved_by=moved_by,
            reason=reason,
        )
        return after

    def other_tables(self, connection: Connection, pipeline: str, table: str) -> list[str]:
        """The other tables of this ledger that a pipeline has loaded."""
        try:
            rows = connection.execute(
                self._statement("other_tables"), {"pipeline": pipeline, "table": table}
            )
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [name for (name,) in rows]

    def lock(self, connection: Connection, pipeline: str, table: str) -> None:
        """Keep a watermark still until the caller's transaction ends."""
        connection.execute(self._statement("lock_state"), {"pipeline": pipeline, "table": table})

    def compare(
        self, connection: Connection, left: str, right: str | None, cursor_type: CursorType
    ) -> tuple[int, str]:
        """(order of left against right, left in canonical form); anything is above nothing."""
        try:
            row = connection.execute(
                self._statement("compare_values", cursor_type),
                {"left": left, "right": left if right is None else right},
            ).fetchone()
        except (pg.DataError, pg.InvalidTextRepresentation) as error:
            raise UsageError(
                f"{left!r} is not a {cursor_type.value}: {first_line(error)}",
                "give a value of the cursor's type, for example "
                + ("12345" if cursor_type.is_number else "2026-11-01 00:00:00+00"),
            ) from None
        assert row is not None
        return (1 if right is None else row[0]), row[1]

    def moves(
        self, connection: Connection, pipeline: str, table: str, limit: int = 20
    ) -> list[Move]:
        rows = connection.execute(
            statement("ledger/watermark_log", "list_moves", schema=self.ledger.schema_identifier),
            {"pipeline": pipeline, "table": table, "limit": limit},
        )
        return [Move(*row) for row in rows]

    def forget(self, connection: Connection, pipeline: str, table: str) -> int:
        parameters = {"pipeline": pipeline, "table": table}
        connection.execute(
            statement("ledger/watermark_log", "delete_moves", schema=self.ledger.schema_identifier),
            parameters,
        )
        return connection.execute(self._statement("delete_state"), parameters).rowcount

    def _log(
        self,
        connection: Connection,
        before: Watermark,
        after: Watermark,
        **values: Any,
    ) -> None:
        connection.execute(
            statement("ledger/watermark_log", "append_move", schema=self.ledger.schema_identifier),
            {
                "pipeline": after.pipeline,
                "table": after.table,
                "generation": after.generation,
                "version": after.version,
                "old": before.value,
                "new": after.value,
                "update_id": after.update_id,
                **values,
            },
        )

    def _statement(self, name: str, cursor_type: CursorType | None = None) -> sql.Composed:
        return statement(
            "ledger/etl_state",
            name,
            schema=self.ledger.schema_identifier,
            type=sql.SQL(cursor_type.value if cursor_type else "text"),
        )


def _json(value: Mapping[str, Any] | None) -> Jsonb | None:
    return None if value is None else Jsonb(dict(value))


def _watermark(row: tuple[Any, ...]) -> Watermark:
    position = None if row[7] is None else tuple(row[7])
    return Watermark(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], position, row[8], row[9], row[10]
    )
