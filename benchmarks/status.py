"""How long it takes to say what a table is made of, against a bare read of the same metadata."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.report import Report
from benchmarks.written_table import write_table
from tidegate.core.relation import Relation
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import HADOOP, open_table
from tidegate.maintenance.facts import read_facts
from tidegate.postgres.connection import Connection

ORDERS = Relation("raw", "orders")
_FILES_PER_MANIFEST = 500


def run(report: Report, *, files: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        catalog = _catalog(Path(name))
        write_table(Path(name), ORDERS, files=files, per_manifest=_FILES_PER_MANIFEST)
        bare, ours = partial(_bare, catalog), partial(read_facts, catalog, ORDERS)
        facts = ours()
        assert facts is not None
        assert facts.data.files == _bare(catalog) == files
        # In turn, so that whatever else the machine does hits both.
        times = [(_seconds(bare), _seconds(ours)) for _ in range(max(3, repeats))]
        least_bare, least_ours = (min(side) for side in zip(*times, strict=True))
        report.note(f"bare read of {files:,} entries with PyIceberg: {least_bare:.3f} s")
        report.note(f"live status of {files:,} data files: {least_ours:.3f} s")
        report.ratio("live status / bare read of its metadata", least_ours / least_bare, at_most=2)


def _bare(catalog: Catalog) -> int:
    """Every entry of every manifest, and nothing made of it."""
    table = open_table(catalog, ORDERS)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return sum(
        len(manifest.fetch_manifest_entry(table.io)) for manifest in snapshot.manifests(table.io)
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _catalog(folder: Path) -> Catalog:
    def none() -> AbstractContextManager[Connection]:
        raise RuntimeError("no database is needed for folders")

    return Catalog(
        "lake", HADOOP, {"warehouse": folder.as_uri()}, folder, "unused", lambda: "", none
    )
