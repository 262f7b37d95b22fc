"""Tables in any state, for rules that look at nothing but their facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from tidegate.core.table_actions import Amount
from tidegate.maintenance.facts import TableFacts

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MB = 1024 * 1024

WELL = TableFacts(
    uuid="u",
    location="file:/lake/raw/orders",
    metadata_location="file:/lake/raw/orders/metadata/1.json",
    format_version=2,
    snapshot_id=1,
    snapshot_at=NOW - timedelta(hours=3),
    snapshots=1,
    oldest_snapshot_at=NOW - timedelta(hours=3),
    branches=1,
    tags=0,
    records=1_000,
    target_file_bytes=512 * MB,
    data=Amount(2, 1_000 * MB),
    small=Amount(),
    small_after=0,
    partitions=1,
    largest_partition_bytes=1_000 * MB,
    median_partition_bytes=1_000 * MB,
    position_deletes=Amount(),
    position_deleted_rows=0,
    equality_deletes=Amount(),
    equality_deleted_rows=0,
    dangling_delete_files=0,
    manifests=Amount(1, 8_000),
    small_manifests=0,
    metadata_files=3,
)


def table(**given: Any) -> TableFacts:
    """A table that is well, but for what is given."""
    return replace(WELL, **given)


@st.composite
def tables(draw: st.DrawFn) -> TableFacts:
    """Any table that could be."""
    counts = st.integers(0, 2_000)
    small, others = draw(counts), draw(counts)
    snapshots = draw(st.integers(1, 500))
    age = timedelta(seconds=draw(st.integers(0, 30 * 86_400)))
    loose = draw(st.integers(0, snapshots - 1))
    positions = draw(counts)
    records = draw(st.integers(0, 10**9))
    median = draw(st.integers(0, 10**9))
    return table(
        snapshot_at=NOW - age / 4,
        snapshots=snapshots,
        oldest_snapshot_at=NOW - age,
        loose_snapshots=loose,
        oldest_loose_at=NOW - age / 2 if loose else None,
        records=records,
        data=Amount(small + others, draw(st.integers(0, 10**12))),
        small=Amount(small, small * draw(st.integers(0, 300 * MB))),
        small_after=draw(st.integers(0, small)),
        most_small_together=draw(st.integers(0, small)),
        partitions=draw(st.integers(1, 100)),
        largest_partition_bytes=median + draw(st.integers(0, 10**12)),
        median_partition_bytes=median,
        position_deletes=Amount(positions, positions * 100),
        position_deletes_after=draw(st.integers(0, positions)),
        position_deleted_rows=draw(st.integers(0, records)),
        equality_deletes=Amount(draw(counts), 10),
        dangling_delete_files=draw(st.integers(0, positions)),
        manifests=Amount(draw(st.integers(1, 500)), 10**6),
        small_manifests=draw(counts),
        may_delete_files=draw(st.booleans()),
    )
