"""Publishing a DataFrame: what its rows look like in the target, then stage, check, publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.destinations.destination import Destination
from tidegate.destinations.lake import LakeDestination
from tidegate.destinations.publication import Publication
from tidegate.errors import DeclarationError
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.column import RelationKind, Table
from tidegate.model.publish import Publish, PublishReport
from tidegate.model.rules import Mode
from tidegate.model.shape import Shape, StagedColumn
from tidegate.pipeline.context import Context
from tidegate.pipeline.course import Attempt
from tidegate.pipeline.declaration import nearest, refuse_in_lake
from tidegate.pipeline.lake_frames import lake_frame_shape
from tidegate.pipeline.load import stage_and_publish
from tidegate.pipeline.stage import Staged, stage_rows
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.types import needs_text
from tidegate.spark.frame import refuse_unreadable
from tidegate.spark.transforming import frame_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class PublishWork:
    """One attempt at one publish."""

    context: Context
    publish: Publish
    frame: DataFrame
    destination: Destination
    attempt: Attempt

    def run(self) -> PublishReport:
        """Put the rows in, unless they are; the fence is raised, so the marker tells."""
        publish, attempt = self.publish, self.attempt
        if self.destination.exists(publish.update_id):
            return PublishReport.found(publish.update_id)

        def publication(staged: Staged) -> Publication:
            whole = publish.rules.mode is Mode.REPLACE
            return Publication(
                update_id=publish.update_id,
                batch=Batch(BatchKind.FULL if whole else BatchKind.FRAME),
                shape=staged.shape,
                writes=staged.writes,
                watermark=None,
                cursor_type=None,
                fence=attempt.fence,
                moved_by=attempt.actor,
                remaining_seconds=attempt.remaining_seconds,
                rules=publish.rules,
            )

        published = stage_and_publish(
            self.destination, self._stage, publication, attempt.check_alive
        )
        self.destination.discard(attempt.fence.attempt_id, ended=True)
        return PublishReport(
            status="already" if published.already else "done",
            rows=published.rows,
            changed=published.changed,
            rejected=published.rejected,
            already=published.already,
            update_id=publish.update_id,
            notes=published.notes,
        )

    def _stage(self) -> Staged:
        publish, attempt_id = self.publish, self.attempt.fence.attempt_id
        shape = frame_shape(self.frame, publish, self.destination)
        self.destination.prepare(shape, None, publish.rules, fence=self.attempt.fence)
        # Each part is a session and a table in the destination, which has not so many to give.
        parts = self.frame.coalesce(publish.partitions)
        return Staged(
            shape,
            stage_rows(
                self.context,
                self.destination,
                publish.target,
                shape,
                parts,
                attempt_id,
                _what(publish),
            ),
        )


def frame_shape(frame: DataFrame, publish: Publish, destination: Destination) -> Shape:
    """The shape of the rows; refuses what the target cannot take, before a row is computed."""
    refuse_unreadable(frame)
    what = _what(publish)
    if isinstance(destination, LakeDestination):
        return _lake_frame_shape(frame, publish, what)
    with destination.open() as connection:
        table = describe_table(connection, destination.relation)
    columns = tuple(
        StagedColumn(name=name, staged_type=kind, target_type=target_type(table, name, kind))
        for name, _, kind in frame_columns(frame, what)
    )
    names = [column.name for column in columns]
    key = _key(publish, table, names)
    for role, wanted in [
        *(("key column", name) for name in key),
        *([("cursor", publish.cursor)] if publish.cursor else []),
    ]:
        if wanted not in names:
            raise DeclarationError(f"{what} has no {role} {wanted}", nearest(wanted, names))
    return Shape(columns, key, publish.cursor, key_is_unique=False)


def _lake_frame_shape(frame: DataFrame, publish: Publish, what: str) -> Shape:
    mode = publish.rules.mode
    refuse_in_lake(publish.rules, publish.key, f"publish into {publish.target}")
    keyless = mode in (Mode.APPEND, Mode.REPLACE) or publish.rules.replaces_part
    if publish.key is None and not keyless:
        raise DeclarationError(
            f"{publish.target} is a table of a lake, which has no primary key, and {mode} needs a "
            "key",
            'name the columns that identify a row, such as key="id", or use mode="append" or '
            'mode="replace"',
        )
    return lake_frame_shape(frame, what, publish.key or (), publish.cursor)


def _what(publish: Publish) -> str:
    return f"the DataFrame for {publish.target}"


def target_type(table: Table | None, name: str, kind: str) -> str:
    """Text goes into a column of a type that Spark has no equal of as that type's own text."""
    known = None if table is None else table.column(name)
    if known is None or kind != "text":
        return kind
    return known.type if known.via_text or needs_text(known.wire) else kind


def _key(publish: Publish, table: Table | None, names: list[str]) -> tuple[str, ...]:
    mode = publish.rules.mode
    if publish.key is not None:
        return publish.key
    if mode is Mode.APPEND or publish.rules.replaces_part:
        return ()
    known = () if table is None or table.kind is RelationKind.VIEW else table.primary_key
    if mode is Mode.REPLACE:
        # A number that the table gives its rows itself identifies nothing in the DataFrame.
        return known if set(known) <= set(names) else ()
    if known:
        return known
    missing = "does not exist yet" if table is None else "has no primary key"
    raise DeclarationError(
        f"{publish.target} {missing}, and {mode} needs a key",
        'name the columns that identify a row, such as key="id", or use mode="append" or '
        'mode="replace"',
    )
