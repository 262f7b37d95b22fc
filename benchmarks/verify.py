"""Verifying equal tables, and repairing a few rows, beside one hash aggregate on each side."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.load import best, timed
from benchmarks.report import Report
from benchmarks.shop import checkpoint, make_source
from tidegate.postgres.connection import Connection
from tidegate.project import Project
from tidegate.verify.report import Verdict

SETTINGS = """
[project]
name = "bench"
[connections]
shop = "embedded:shop"
warehouse = "embedded:warehouse"
[sync.orders]
source = "shop:public.orders"
target = "warehouse:public.orders_copy"
cursor = "updated_at"
batch_rows = {rows}
"""
AGGREGATE = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t"


def run(report: Report, *, rows: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        (folder / "tidegate.toml").write_text(SETTINGS.format(rows=max(rows, 500_000)))
        project = Project.open(folder)
        try:
            with project.connect("shop") as source, project.connect("warehouse") as target:
                _measure(project, report, source, target, rows, repeats)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _measure(
    project: Project, report: Report, source: Connection, target: Connection, rows: int, tries: int
) -> None:
    make_source(source, rows)
    project.run("orders")
    target.execute("VACUUM (ANALYZE) orders_copy")
    checkpoint(target)

    def aggregate() -> None:
        """Both sides at once, as a verification does it."""
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: source.execute(AGGREGATE.format("orders")).fetchone())
            found = target.execute(AGGREGATE.format("orders_copy")).fetchone()
            if found != other.result():
                raise RuntimeError("the tables differ")

    def verify() -> None:
        if project.verify("orders").verdict is not Verdict.EQUAL:
            raise RuntimeError("the tables differ")

    def nothing() -> None:
        pass

    aggregate()
    floor = best(tries, nothing, aggregate)
    report.note(f"one hash aggregate on each side: {floor:.2f} s")
    verified = best(tries, nothing, verify)
    report.note(f"verify: {verified:.2f} s")
    report.ratio("verify of equal tables / hash aggregates", verified / floor, at_most=2.5)

    source.execute("DELETE FROM orders WHERE id % 100000 = 7")
    target.execute("UPDATE orders_copy SET total = 0 WHERE id % 100000 = 8")
    repaired = timed(lambda: project.verify("orders", repair=True))
    report.note(f"verify --repair of a row in 50,000: {repaired:.2f} s")
    report.holds("equal after the repair", project.verify("orders").verdict is Verdict.EQUAL)
