"""Columns that changed in a source since the last load: can it be compared, and who follows."""

from __future__ import annotations

from tidegate.destinations.drift import find_evolution
from tidegate.destinations.lake import LakeDestination
from tidegate.destinations.target import check_existing
from tidegate.errors import DestinationError, DriftRefused
from tidegate.model.cursor import CursorType
from tidegate.model.drift import Loaded, record_columns
from tidegate.model.rules import Mode
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.pipeline.course import Course
from tidegate.pipeline.declaration import lake_shape, passthrough_shape
from tidegate.pipeline.first_copy import MARK_TYPE, mark_column
from tidegate.postgres.connect import Connection
from tidegate.postgres.types import lake_type
from tidegate.sources.postgres import PostgresSource


def follow_columns(course: Course, source: PostgresSource) -> None:
    """Let the target follow where no row came that it would have to follow for.

    Without this `verify` would ask for a run that does nothing. What a transformation makes of the
    columns is not known until it has rows.
    """
    sync, watermark = course.sync, course.watermark()
    recorded = (watermark.declaration or {}).get("columns")
    if course.outcome.loads or recorded is None or sync.transform is not None:
        return
    # What is replaced each time is loaded again when its columns change.
    if sync.mode is Mode.REPLACE or watermark.version == 0:
        return
    shape = _shape(course, source)
    columns = record_columns(shape)
    if columns == recorded:
        return
    try:
        course.outcome.remarks += course.destination.prepare(
            shape,
            watermark,
            sync.rules,
            fence=course.attempt.fence,
            source_names=source.table.column_names,
        )
    except DriftRefused:
        # Who cannot follow says so when there is something to load.
        return
    kind = watermark.cursor_type
    course.pass_over(
        watermark,
        watermark.value,
        None if kind is None else CursorType(kind),
        {**(watermark.declaration or {}), "columns": columns},
        reason="columns changed",
    )


def _shape(course: Course, source: PostgresSource) -> Shape:
    sync, destination = course.sync, course.destination
    if isinstance(destination, LakeDestination):
        shape, kind = lake_shape(source), lake_type(MARK_TYPE)
    else:
        with destination.open() as connection:
            shape, kind = passthrough_shape(connection, source), MARK_TYPE
    return mark_column(shape, kind) if sync.is_soft else shape


def check_comparable(
    target: Connection, sync: Sync, shape: Shape, loaded: Loaded | None
) -> tuple[str, ...]:
    """What `plan` says of the drift; refuses in its words where the target lacks what is compared.

    A column that only left the source, or that may be NULL now, is in nobody's way.
    """
    relation, rules = sync.target.relation, sync.rules
    try:
        check_existing(target, relation, shape, rules)
    except DestinationError:
        evolution = find_evolution(target, relation, shape, rules, loaded)
        if evolution is None or not evolution.is_needed:
            raise
        check_existing(target, relation, shape, rules, evolution.table)
        raise columns_changed(sync, evolution.notes, "verify again") from None
    try:
        evolution = find_evolution(target, relation, shape, rules, loaded)
    except DriftRefused as refusal:
        return (refusal.message,)
    return () if evolution is None else evolution.notes


def columns_changed(sync: Sync, changes: tuple[str, ...], then: str) -> DestinationError:
    """The refusal to compare, or to put right, what no longer has the source's columns."""
    first = f"let the target follow first: tidegate run {sync.name}"
    if sync.transform is not None:
        first = (
            "the target follows when rows come; to load all of them now: "
            f"tidegate run {sync.name} --full-refresh"
        )
    return DestinationError(
        f"the source of {sync.target.relation} changed since the last load: {'; '.join(changes)}",
        f"{first}; then {then}",
    )
