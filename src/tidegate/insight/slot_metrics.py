"""The slots of a project in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.insight.metrics import Metric
from tidegate.insight.slots import quick_source, read_slots
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection


def measure_slots(context: Context, control: Connection) -> Iterator[Metric]:
    """What every slot keeps of its server's log, and how far each of its readers is behind."""
    where = ("slot", "connection")
    retained = Metric(
        "tidegate_slot_retained_bytes", "How much of its log a source keeps for a slot.", where
    )
    lost = Metric("tidegate_slot_lost", "Whether a slot is gone or was given up.", where)
    away = Metric("tidegate_slot_unreachable", "Whether its source did not answer.", where)
    over = Metric("tidegate_slot_over_limit", "Whether it keeps more than max_retained.", where)
    behind = Metric(
        "tidegate_sync_behind_bytes",
        "How much of its source's log a sync has not read yet.",
        ("sync",),
    )
    age = Metric(
        "tidegate_sync_read_age_seconds",
        "How long ago a sync saw all that its slot had.",
        ("sync",),
    )
    for one in read_slots(context, control, quick_source(context)):
        labels = (one.slot, one.connection)
        away.values[labels] = one.unreachable is not None
        if one.unreachable is None:
            lost.values[labels] = one.is_lost
            kept = one.retained_bytes or 0
            retained.values[labels] = kept
            over.values[labels] = kept >= context.settings.cdc.max_retained
            for reader in one.readers:
                behind.values[(reader.sync,)] = reader.behind_bytes
                if reader.seconds is not None:
                    age.values[(reader.sync,)] = reader.seconds
    yield from (retained, lost, away, over, behind, age)
