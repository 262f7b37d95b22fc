"""Into a lake: 3,000,000 rows into an empty table, then a 1% change, beside Spark on its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import spark_jdbc
from benchmarks.load import best, jdbc_address, timed
from benchmarks.report import Report
from benchmarks.shop import change_one_percent, make_source
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.iceberg import statements
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.metadata import read_table
from tidegate.load.sources.resolve import lake_shape, resolve_source
from tidegate.load.targets.iceberg.commit import IcebergCommit
from tidegate.load.targets.iceberg.table import DEFAULTS
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.postgres.connection import Connection
from tidegate.project import Project

SETTINGS = """
[project]
name = "bench"
[connections]
shop = "embedded:shop"
lake = {{ type = "iceberg" }}
[sync.orders]
source = "shop:public.orders"
target = "lake:bench.orders"
cursor = "updated_at"
batch_rows = {rows}
"""
OURS = Relation("bench", "orders")
BARE = Relation("bench", "orders_jdbc")


def run(report: Report, *, rows: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        (folder / "tidegate.toml").write_text(SETTINGS.format(rows=rows))
        project = Project.open(folder)
        try:
            with project.connect("shop") as source:
                make_source(source, rows)
                _speed(project, report, source, rows, repeats)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _speed(project: Project, report: Report, source: Connection, rows: int, repeats: int) -> None:
    context = project.context
    catalog = context.catalog("lake")
    context.ledger("lake").ensure()  # the catalog lies beside it
    spark = context.spark.separate(catalog.spark_conf())
    address = jdbc_address(context.databases.portable_conninfo("shop"))

    def drop(relation: Relation) -> None:
        spark.sql(f"DROP TABLE IF EXISTS {catalog.quoted(relation)} PURGE")

    def ours_anew() -> None:
        drop(OURS)
        if project.watermark("orders").value is not None:
            project.watermark("orders").rewind(reason="measure again")

    def bare_anew() -> None:
        drop(BARE)
        frame = spark_jdbc.read(spark, address, None, rows)
        columns = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        spark.sql(statements.create_namespace(catalog, BARE))
        spark.sql(statements.create_table(catalog, BARE, columns, properties=DEFAULTS))

    def bare() -> None:
        spark_jdbc.read(spark, address, None, rows).writeTo(catalog.quoted(BARE)).append()

    sides: dict[str, tuple[Callable[[], None], Callable[[], object]]] = {
        "tidegate": (ours_anew, lambda: project.run("orders")),
        "jdbc": (bare_anew, bare),
    }
    first: dict[str, float] = {}
    for side, (prepare, work) in sides.items():
        prepare()
        work()  # warm
        first[side] = best(repeats, prepare, work)
        report.note(f"into a lake, first load, {side}: {first[side]:.2f} s")
    report.ratio("JDBC / first load into a lake", first["jdbc"] / first["tidegate"], at_least=1.5)

    _change(project, report, source, spark, catalog, repeats)


def _change(
    project: Project,
    report: Report,
    source: Connection,
    spark: Any,
    catalog: Catalog,
    repeats: int,
) -> None:
    """The same staged files, merged by Tidegate and by a statement as one would write it."""
    shape = lake_shape(resolve_source(source, project.syncs["orders"]))
    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-staged-"))
    spent: dict[str, list[float]] = {"tidegate": [], "bare": [], "publish": []}
    apply = IcebergCommit.apply
    publish = IcebergTarget.publish

    def kept(rows: Any, *given: Any) -> Any:
        for number, path in enumerate(rows.paths):
            _copy(path, folder / f"{number}.parquet")
        started = time.perf_counter()
        found = apply(rows, *given)
        spent["tidegate"].append(time.perf_counter() - started)
        return found

    def watched(target: Any, publication: Any) -> Any:
        started, before = time.perf_counter(), len(spent["tidegate"])
        found = publish(target, publication)
        whole = time.perf_counter() - started
        spent["publish"].append(whole - sum(spent["tidegate"][before:]))
        return found

    IcebergCommit.apply = kept  # type: ignore[method-assign]
    IcebergTarget.publish = watched  # type: ignore[method-assign]
    try:
        for _ in range(repeats + 1):
            for old in folder.glob("*.parquet"):
                old.unlink()
            change_one_percent(source)
            report.note(f"into a lake, 1% change: {timed(lambda: project.run('orders')):.2f} s")
            spent["bare"].append(timed(lambda: _bare_merge(spark, catalog, shape, folder)))
    finally:
        IcebergCommit.apply = apply  # type: ignore[method-assign]
        IcebergTarget.publish = publish  # type: ignore[method-assign]
    _check(source, catalog)
    times = {side: min(found[1:]) for side, found in spent.items()}
    report.note(f"merging 1%: {times['tidegate']:.2f} s, a bare MERGE {times['bare']:.2f} s")
    report.ratio("merge of 1% / bare MERGE", times["tidegate"] / times["bare"], at_most=1.2)
    report.value("publish itself", times["publish"], "s", at_most=1.0)


def _bare_merge(spark: Any, catalog: Catalog, shape: Shape, folder: Path) -> None:
    """What somebody would write by hand: update what is there, insert what is not."""
    key = " AND ".join(f"t.`{name}` = s.`{name}`" for name in shape.key)
    spark.sql(
        f"MERGE INTO {catalog.quoted(BARE)} t USING parquet.`{folder}` s ON {key} "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _check(source: Connection, catalog: Catalog) -> None:
    row = source.execute("SELECT count(*) FROM orders").fetchone()
    table = read_table(catalog, OURS)
    assert row is not None
    if table is None or table.rows() != row[0]:
        raise RuntimeError("the lake does not hold as many rows as the source")


def _copy(path: str, to: Path) -> None:
    to.write_bytes(Path(path.removeprefix("file://").removeprefix("file:")).read_bytes())
