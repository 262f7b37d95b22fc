"""Columns that changed in a source since the last load: can it be compared, and who follows."""

from __future__ import annotations

from tidegate.destinations.drift import find_evolution
from tidegate.destinations.target import check_existing
from tidegate.errors import DestinationError, DriftRefused
from tidegate.model.drift import Loaded
from tidegate.model.shape import Shape
from tidegate.model.sync import Sync
from tidegate.postgres.connect import Connection


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
