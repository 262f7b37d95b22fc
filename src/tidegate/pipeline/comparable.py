"""Whether source and target can be compared while the source has drifted since the last load."""

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
        raise DestinationError(
            f"the source of {relation} changed since the last load: {'; '.join(evolution.notes)}",
            f"let the target follow first: tidegate run {sync.name}; then verify again",
        ) from None
    try:
        evolution = find_evolution(target, relation, shape, rules, loaded)
    except DriftRefused as refusal:
        return (refusal.message,)
    return () if evolution is None else evolution.notes
