"""Many small tables: 200 of 1,000 rows each, then a run that finds nothing."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from psycopg import sql

from benchmarks.report import Report
from tidegate.postgres.connection import Connection
from tidegate.project import Project

SETTINGS = """
[project]
name = "bench"
[connections]
shop = "embedded:shop"
warehouse = "embedded:warehouse"
"""
SYNC = """
[sync.t{number:03}]
source = "shop:public.t{number:03}"
target = "warehouse:raw.t{number:03}"
cursor = "updated_at"
"""


def run(report: Report, *, tables: int, rows: int) -> None:
    """Load them all with Spark warm, then run again when nothing changed."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        syncs = "".join(SYNC.format(number=number) for number in range(tables))
        (folder / "tidegate.toml").write_text(SETTINGS + syncs)
        project = Project.open(folder)
        try:
            _measure(project, report, tables, rows)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _measure(project: Project, report: Report, tables: int, rows: int) -> None:
    with project.connect("shop") as source:
        for number in range(tables):
            _make(source, f"t{number:03}", rows)
    project.run("t000")
    names = list(project.syncs)[1:]
    started = time.perf_counter()
    loaded = project.run_many(names)
    load = (time.perf_counter() - started) / len(names)
    started = time.perf_counter()
    nothing = project.run_many(names)
    again = (time.perf_counter() - started) / len(names)
    assert not loaded.failed
    assert loaded.rows == rows * len(names)
    assert all(end.report is not None and end.report.found_nothing for end in nothing.ends)
    report.value(f"{tables} tables x {rows:,} rows, warm", load, "s a table", at_most=0.25)
    report.value(f"{tables} tables, nothing changed", again, "s a table", at_most=0.05)


def _make(source: Connection, name: str, rows: int) -> None:
    table = sql.Identifier("public", name)
    source.execute(
        sql.SQL(
            "CREATE TABLE {} (id bigint PRIMARY KEY, name text NOT NULL, total numeric(12,2),"
            " paid boolean, note text, updated_at timestamptz NOT NULL DEFAULT now())"
        ).format(table)
    )
    source.execute(
        sql.SQL(
            "INSERT INTO {} SELECT n, 'customer ' || n, n / 7.0, n % 2 = 0, md5(n::text),"
            " '2026-01-01'::timestamptz + n * interval '1 second' FROM generate_series(1, {}) n"
        ).format(table, sql.Literal(rows))
    )
    source.execute(sql.SQL("CREATE INDEX ON {} (updated_at)").format(table))
