"""Watermarks: how far each pipeline has got (`etl_state`), and every move (`watermark_log`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import errors as pg
from psycopg import sql
from psycopg.types.json import Jsonb

from tidegate.core.errors import DeclarationError, UsageError, WatermarkMoved
from tidegate.core.watermark import CursorType, LoadMark, Watermark
from tidegate.ledger.ledger import Ledger
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import statement


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
        """Make the row that later moves compare against; a table has one pipeline."""
        self.refuse_shared(connection, pipeline, table)
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

    def recover(
        self,
        connection: Connection,
        before: Watermark,
        loads: Sequence[LoadMark],
        *,
        moved_by: str,
    ) -> Watermark:
        """Where loads have led that the target knows of and this ledger does not, oldest first."""
        for load in loads:
            after = before.after_mark(load)
            moved = connection.execute(
                self._statement("recover_state"),
                {
                    "pipeline": after.pipeline,
                    "table": after.table,
                    "value": after.value,
                    "position": None if after.position is None else Jsonb(list(after.position)),
                    "generation": after.generation,
                    "version": after.version,
                    "rows": after.rows_synced,
                    "update_id": after.update_id,
                    "fence": load.fence,
                    "old_version": before.version,
                    "old_generation": before.generation,
                },
            ).rowcount
            if moved != 1:
                raise WatermarkMoved(
                    f"the watermark of {after.pipeline} moved while it was read",
                    "run again",
                )
            self._log(
                connection,
                before,
                after,
                rows=load.rows,
                attempt_id=load.attempt_id,
                fence=load.fence,
                moved_by=moved_by,
                reason=f"load {load.kind}",
            )
            before = after
        return before

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

    def other_pipelines(self, connection: Connection, pipeline: str, table: str) -> list[str]:
        """The other pipelines, of this project or another, that have loaded a table."""
        try:
            rows = connection.execute(
                self._statement("other_pipelines"), {"pipeline": pipeline, "table": table}
            )
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return []
        return [name for (name,) in rows]

    def refuse_shared(self, connection: Connection, pipeline: str, table: str) -> None:
        """Refuse a table that another pipeline has loaded: each would take the other's rows for
        its own, and change or remove them."""
        others = self.other_pipelines(connection, pipeline, table)
        if others:
            raise DeclarationError(
                f"{table} is loaded by {', '.join(others)} already, and {pipeline} would take its "
                "rows for its own",
                "choose another target; or give that one up with tidegate remove NAME, in its "
                "project (the rows stay); or, if it is gone for good or this is its new name: "
                "tidegate run NAME --take-over",
            )

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

    def rows_put_in(self, connection: Connection, table: str) -> int:
        """How many rows the loads of a table say that they put in, since the last one of all."""
        row = connection.execute(
            statement("ledger/watermark_log", "count_put_in", schema=self.ledger.schema_identifier),
            {"table": table},
        ).fetchone()
        return int(row[0]) if row else 0

    def was_moved_by(self, connection: Connection, table: str, attempt_id: str) -> bool:
        """Whether an attempt has moved a watermark of this table."""
        row = connection.execute(
            statement("ledger/watermark_log", "has_moved", schema=self.ledger.schema_identifier),
            {"table": table, "attempt_id": attempt_id},
        ).fetchone()
        return bool(row and row[0])

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
