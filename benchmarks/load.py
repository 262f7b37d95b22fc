"""The load: 1,000,000 rows into an empty table, then a 1% change, then nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from benchmarks import floor, memory, spark_jdbc
from benchmarks.dlt_side import DltSide
from benchmarks.report import Report
from benchmarks.shop import (
    agrees,
    change_one_percent,
    checkpoint,
    highest_cursor,
    make_source,
    make_target,
)
from tidegate.postgres.connection import Connection
from tidegate.project import Project

SETTINGS = """
[project]
name = "bench"
[connections]
shop = "embedded:shop"
warehouse = "embedded:warehouse"
[spark.conf]
"spark.jars.packages" = "{package}"
[sync.orders]
source = "shop:public.orders"
target = "warehouse:public.orders_tidegate"
cursor = "updated_at"
{extra}
"""


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best(repeats: int, prepare: Callable[[], None], work: Callable[[], object]) -> float:
    """The best of several tries: the machine is shared, and noise only ever adds."""
    times = []
    for _ in range(repeats):
        prepare()
        times.append(timed(work))
    return min(times)


def run(report: Report, *, rows: int, memory_rows: int, repeats: int, with_dlt: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        (folder / "tidegate.toml").write_text(
            SETTINGS.format(package=spark_jdbc.PACKAGE, extra=f"batch_rows = {max(rows, 500_000)}")
        )
        project = Project.open(folder)
        try:
            _speed(project, report, rows, repeats, with_dlt=with_dlt)
            project.close()
            if memory_rows:
                _memory(project, report, folder, rows, memory_rows)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _speed(project: Project, report: Report, rows: int, repeats: int, *, with_dlt: bool) -> None:
    databases = project.context.databases
    server = databases.embedded
    with project.connect("shop") as source, project.connect("warehouse") as target:
        make_source(source, rows)
        spark = project.context.spark.get()
        jdbc_source = jdbc_address(databases.portable_conninfo("shop"))
        jdbc_target = jdbc_address(databases.portable_conninfo("warehouse"))
        sides: dict[str, Callable[[str | None], object]] = {
            "floor": lambda since: floor.run(
                server.bin_directory / "psql",
                databases.conninfo("shop"),
                databases.conninfo("warehouse"),
                target,
                "orders_floor",
                since,
            ),
            "tidegate": lambda _: project.run("orders"),
            "jdbc": lambda since: spark_jdbc.run(
                spark, jdbc_source, jdbc_target, target, "orders_jdbc", since
            ),
        }
        first: dict[str, float] = {}
        for side, work in sides.items():

            def prepare(side: str = side) -> None:
                make_target(target, f"orders_{side}")
                if side == "tidegate" and project.watermark("orders").value is not None:
                    project.watermark("orders").rewind(reason="measure again")
                checkpoint(target)

            if side != "floor":
                prepare()
                work(None)  # warm
            first[side] = best(repeats, prepare, lambda work=work: work(None))  # type: ignore[misc]
            report.note(f"first load, {side}: {first[side]:.2f} s")
        if with_dlt:
            _beside_dlt(project, report, target, repeats, first["tidegate"])
        report.ratio("first load / floor", first["tidegate"] / first["floor"], at_most=1.6)
        report.ratio("JDBC / first load", first["jdbc"] / first["tidegate"], at_least=1.5)

        since = highest_cursor(source)
        change_one_percent(source)
        second: dict[str, float] = {}
        for side, work in sides.items():
            second[side] = timed(lambda work=work: work(since))  # type: ignore[misc]
            report.note(f"1% change, {side}: {second[side]:.2f} s")
            if not agrees(source, target, f"orders_{side}"):
                raise RuntimeError(f"{side}: the target does not equal the source")
        report.note(f"1% change / floor: {second['tidegate'] / second['floor']:.2f} x")
        report.note(f"JDBC / 1% change: {second['jdbc'] / second['tidegate']:.2f} x")
        both = {side: first[side] + second[side] for side in sides}
        report.ratio("load and change / floor", both["tidegate"] / both["floor"], at_most=1.6)
        report.ratio("JDBC / load and change", both["jdbc"] / both["tidegate"], at_least=1.5)
        nothing = min(timed(lambda: project.run("orders")) for _ in range(3))
        report.value("nothing changed, warm", nothing, "s", at_most=0.5)


def _beside_dlt(
    project: Project, report: Report, target: Connection, repeats: int, ours: float
) -> None:
    """The same table, the same server, the same run; the best of as many tries as ours."""
    databases = project.context.databases
    times = []
    settings: object = None
    target.execute("DROP SCHEMA IF EXISTS dlt_side, dlt_side_staging CASCADE")
    addresses = [databases.portable_conninfo(name) for name in ("shop", "warehouse")]
    for number in range(repeats + 1):
        with DltSide(addresses[0], addresses[1]) as dlt:
            settings = dlt.settings
            seconds = dlt.run()
        if number == 0:
            # It makes its table itself; from now on with the indexes that all sides have.
            target.execute("ALTER TABLE dlt_side.orders ADD PRIMARY KEY (id)")
            target.execute("CREATE INDEX ON dlt_side.orders (customer_id)")
        else:
            times.append(seconds)
        target.execute("TRUNCATE dlt_side.orders, dlt_side._dlt_pipeline_state")
        checkpoint(target)
    report.note(f"dlt as it is set up: {settings}")
    report.note(f"first load, dlt: {min(times):.2f} s")
    report.ratio("dlt / first load", min(times) / ours, at_least=1.5)


def _memory(project: Project, report: Report, folder: Path, rows: int, memory_rows: int) -> None:
    peaks: dict[int, int] = {}
    for count in (rows, memory_rows):
        with project.connect("shop") as source, project.connect("warehouse") as target:
            make_source(source, count)
            target.execute("DROP TABLE IF EXISTS orders_tidegate")
        project.watermark("orders").rewind(reason="measure memory")
        peaks[count] = memory.peak_of(memory.run_command("orders"), folder)
        report.note(f"peak memory at {count:,} rows: {peaks[count] / 2**20:.0f} MiB")
    report.ratio(
        f"memory at {memory_rows:,} / {rows:,} rows", peaks[memory_rows] / peaks[rows], at_most=1.3
    )


def jdbc_address(conninfo: str) -> dict[str, str]:
    parts = conninfo_to_dict(conninfo)
    return {
        "driver": "org.postgresql.Driver",
        "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "user": str(parts["user"]),
        "password": str(parts["password"]),
    }
