"""Wide rows and large texts: 100 columns, and texts of 10 kB, each against the floor."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from psycopg import sql

from benchmarks.load import best
from benchmarks.report import Report
from benchmarks.shop import checkpoint
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
[sync.{name}]
source = "shop:public.{name}"
target = "warehouse:public.{name}"
cursor = "updated_at"
"""

# 100 columns of five kinds; then a few columns of which one is long and does not compress well.
WIDE = ", ".join(
    f"{kind} AS c{number}_{place}"
    for number in range(19)
    for place, kind in enumerate(
        (
            "g % 1000",
            "'text ' || g % 100",
            "(g % 100000) / 100.0",
            "g % 2 = 0",
            "timestamptz '2026-01-01' + g * interval '1 second'",
        )
    )
)
LONG = "(SELECT string_agg(md5(g::text || n), '') FROM generate_series(1, 312) n) AS body"
TABLES = {
    "wide": (100_000, f"g AS id, {WIDE}, 'x' AS a, 'y' AS b, g AS c"),
    "long": (50_000, f"g AS id, g % 100 AS kind, {LONG}"),
}


def run(report: Report, *, repeats: int) -> None:
    """Load both tables into empty targets, beside the bare pipe and upsert."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        syncs = "".join(SYNC.format(name=table) for table in TABLES)
        (folder / "tidegate.toml").write_text(SETTINGS + syncs)
        project = Project.open(folder)
        try:
            with project.connect("shop") as source, project.connect("warehouse") as target:
                for table, (rows, columns) in TABLES.items():
                    _make(source, table, rows, columns)
                    _measure(project, report, target, table, rows, repeats)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _make(source: Connection, name: str, rows: int, columns: str) -> None:
    source.execute(
        f"CREATE TABLE {name} AS SELECT {columns},"
        " timestamptz '2026-01-01' + g * interval '1 second' AS updated_at"
        f" FROM generate_series(1, {rows}) g"
    )
    source.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id), ALTER updated_at SET NOT NULL")
    source.execute(f"CREATE INDEX ON {name} (updated_at)")
    source.execute(f"VACUUM (ANALYZE) {name}")


def _measure(
    project: Project, report: Report, target: Connection, name: str, rows: int, repeats: int
) -> None:
    def clear() -> None:
        target.execute(f"DROP TABLE IF EXISTS {name}, {name}_floor, {name}_staging")
        if project.watermark(name).value is not None:
            project.watermark(name).rewind(reason="measure again")
        checkpoint(target)

    clear()
    project.run(name)  # warm, and it makes a table to copy the shape from
    target.execute(f"CREATE TABLE shape_{name} (LIKE {name} INCLUDING ALL)")
    ours = best(repeats, clear, lambda: project.run(name))
    floor = best(repeats, clear, lambda: _floor(project, target, name))
    report.note(f"{rows:,} {name} rows: {ours:.2f} s, floor {floor:.2f} s")
    report.ratio(f"{name} rows / floor", ours / floor, at_most=1.6)


def _floor(project: Project, target: Connection, name: str) -> None:
    """COPY through a pipe into an unlogged table, then an upsert into a new one."""
    databases = project.context.databases
    psql = databases.embedded.bin_directory / "psql"
    target.execute(f"CREATE TABLE {name}_floor (LIKE shape_{name} INCLUDING ALL)")
    target.execute(f"CREATE UNLOGGED TABLE {name}_staging (LIKE shape_{name})")
    out = subprocess.Popen(
        [psql, databases.conninfo("shop"), "-qc", f"COPY {name} TO STDOUT (FORMAT binary)"],
        stdout=subprocess.PIPE,
    )
    subprocess.run(
        [
            psql,
            databases.conninfo("warehouse"),
            "-qc",
            f"COPY {name}_staging FROM STDIN (FORMAT binary)",
        ],
        stdin=out.stdout,
        check=True,
    )
    if out.wait() != 0:
        raise RuntimeError("the pipe's reader failed")
    columns = target.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
        (f"shape_{name}",),
    ).fetchall()
    sets = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(column))
        for (column,) in columns
        if column != "id"
    )
    target.execute(
        sql.SQL("INSERT INTO {} SELECT * FROM {} ON CONFLICT (id) DO UPDATE SET {}").format(
            sql.Identifier(f"{name}_floor"), sql.Identifier(f"{name}_staging"), sets
        )
    )
