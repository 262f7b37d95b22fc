"""Late data: changes from a slot beside pg_recvlogical and a merge by hand, and rows found by their
transactions beside rows found by their cursor."""

from __future__ import annotations

import subprocess
import tempfile
from functools import partial
from pathlib import Path

from psycopg import sql

from benchmarks import memory
from benchmarks.load import timed
from benchmarks.report import Report
from benchmarks.shop import COLUMNS, checkpoint, make_source
from tidegate.postgres.connection import Connection
from tidegate.project import Project
from tidegate.spark.binary_copy import copy_rows

SETTINGS = """
[project]
name = "bench"
[connections]
shop = "embedded:shop"
warehouse = "embedded:warehouse"
[sync.changes]
source = "shop:public.orders"
target = "warehouse:public.by_changes"
changes = "cdc"
[sync.plain]
source = "shop:public.orders"
target = "warehouse:public.by_cursor"
cursor = "updated_at"
settle = "0s"
[sync.written]
source = "shop:public.orders"
target = "warehouse:public.by_written"
changes = "snapshot"
cursor = "updated_at"
lookback = "1 hour"
"""
SLOT = "by_hand"
TRANSACTION_ROWS = 1_000
CHANGE = """
DO $$ BEGIN
FOR n IN {first} .. {last} LOOP
    UPDATE orders SET total = total + 1, updated_at = clock_timestamp()
    WHERE id BETWEEN n * {size} + 1 AND n * {size} + {size} * 7 / 10;
    DELETE FROM orders
    WHERE id BETWEEN n * {size} + {size} * 7 / 10 + 1 AND n * {size} + {size} * 8 / 10;
    INSERT INTO orders SELECT 1000000000 + n * {size} + i, 1, 'new', 'EUR', 1, 1, 1, true, 'note',
        now(), now(), clock_timestamp(), md5(i::text)::uuid FROM generate_series(1, {size} / 5) i;
    COMMIT;
END LOOP; END $$
"""


def run(report: Report, *, rows: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        (folder / "tidegate.toml").write_text(SETTINGS)
        project = Project.open(folder)
        try:
            with project.connect("shop") as source, project.connect("warehouse") as target:
                make_source(source, rows)
                _measure_changes(project, report, source, target, rows, repeats)
            project.close()
            _measure_memory(project, report, folder, rows)
            with project.connect("shop") as source:
                _measure_written(project, report, source, rows, repeats)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _measure_changes(
    project: Project, report: Report, source: Connection, target: Connection, rows: int, tries: int
) -> None:
    project.run("changes")
    source.execute("CREATE PUBLICATION by_hand FOR TABLE orders")
    target.execute("CREATE TABLE by_hand AS TABLE by_changes")
    target.execute("ALTER TABLE by_hand ADD PRIMARY KEY (id)")
    ours: list[float] = []
    hand: list[float] = []
    transactions = rows // TRANSACTION_ROWS // (tries + 1)
    for number in range(tries + 1):
        source.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        change(source, number * transactions, transactions)
        checkpoint(target)
        one = timed(lambda: project.run("changes"))
        checkpoint(target)
        by_hand = partial(_by_hand, project, source, target, number * transactions, transactions)
        other = timed(by_hand)
        source.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
        if number:  # the first warms Spark
            ours.append(one)
            hand.append(other)
    changes = transactions * TRANSACTION_ROWS
    report.note(f"{changes:,} changes: {min(ours):.2f} s, by hand {min(hand):.2f} s")
    report.ratio(
        "changes a second / pg_recvlogical and a merge", min(hand) / min(ours), at_least=0.5
    )
    same = [
        target.execute(
            f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {one} t"
        ).fetchone()
        for one in ("by_changes", "by_hand")
    ]
    report.holds("both tables are the same", same[0] == same[1])


def change(source: Connection, first: int, transactions: int) -> None:
    """Transactions that update, delete and insert."""
    source.execute(CHANGE.format(first=first, last=first + transactions - 1, size=TRANSACTION_ROWS))
    source.execute("VACUUM (ANALYZE) orders")
    checkpoint(source)


def _by_hand(
    project: Project, source: Connection, target: Connection, first: int, transactions: int
) -> None:
    """Decode to nowhere, then bring over what is known to have changed, and merge it."""
    row = source.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    databases = project.context.databases
    subprocess.run(
        [
            str(databases.embedded.bin_directory / "pg_recvlogical"),
            "--dbname",
            databases.conninfo("shop"),
            "--slot",
            SLOT,
            "--start",
            "--endpos",
            row[0],
            "--file",
            "/dev/null",
            "--option",
            "proto_version=1",
            "--option",
            "publication_names=by_hand",
        ],
        check=True,
    )
    size, low = TRANSACTION_ROWS, first * TRANSACTION_ROWS
    high = low + transactions * size
    changed = f"id > {low} AND id < 1000000000 OR id > 1000000000 + {low}"
    with target.transaction():
        target.execute("CREATE TEMPORARY TABLE staged (LIKE by_hand) ON COMMIT DROP")
        query = (
            f"SELECT {', '.join(COLUMNS)} FROM orders WHERE ({changed}) AND updated_at >="
            " (SELECT max(updated_at) - interval '1 hour' FROM orders)"
        )
        copy_rows(source, query, target, sql.Identifier("staged"), COLUMNS)
        values = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "id")
        target.execute(
            f"INSERT INTO by_hand SELECT * FROM staged ON CONFLICT (id) DO UPDATE SET {values}"
        )
        target.execute(
            f"DELETE FROM by_hand WHERE id > {low} AND id <= {high}"
            f" AND (id - 1) % {size} >= {size} * 7 / 10 AND (id - 1) % {size} < {size} * 8 / 10"
        )


def _measure_memory(project: Project, report: Report, folder: Path, rows: int) -> None:
    """One transaction, small and large."""
    peaks: list[int] = []
    for part in (5, 1):
        with project.connect("shop") as source:
            source.execute(f"UPDATE orders SET total = total + 1 WHERE id <= {rows // part}")
        peaks.append(memory.peak_of(memory.run_command("changes"), folder))
        report.note(
            f"peak memory with a transaction of {rows // part:,} changes: "
            f"{peaks[-1] / 2**20:.0f} MiB"
        )
    report.ratio("memory with a transaction five times as large", peaks[1] / peaks[0], at_most=1.3)


def _measure_written(
    project: Project, report: Report, source: Connection, rows: int, tries: int
) -> None:
    make_source(source, rows)  # of which nothing was written within the lookback
    times: dict[str, list[float]] = {"plain": [], "written": []}
    for number in range(tries + 2):
        source.execute(
            "UPDATE orders SET total = total + 1, updated_at = clock_timestamp()"
            f" WHERE id % 100 = {number}"
        )
        source.execute("VACUUM (ANALYZE) orders")
        for name, taken in times.items():
            seconds = timed(partial(project.run, name))
            if number > 1:  # the first loads all of it, the second warms up
                taken.append(seconds)
    plain, written = (min(taken) for taken in times.values())
    report.note(f"1% of {rows:,} rows: by cursor {plain:.2f} s, by transactions {written:.2f} s")
    report.ratio("snapshot with a cursor / cursor", written / plain, at_most=1.3)
