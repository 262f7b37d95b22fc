"""What a transformation that fails shows on the terminal: our message, nothing of Spark's."""

from __future__ import annotations

from integration.commands import FAILED, tidegate
from integration.conftest import MakePlace

IN_ORDER = ("--concurrency", "1")
PIPELINES = """
import tidegate as tg
from pyspark.sql import functions as F

def declare(name, function):
    tg.sync(
        source="shop:public.t", target=f"warehouse:raw.{name}", cursor="id", name=name
    )(function)

declare("by_column", lambda df: df.withColumn("n", F.col("word").cast("int")))
declare("by_text", lambda df: df.withColumn("n", F.expr("cast(word as int)")))
declare("by_name", lambda df: df.withColumn("n", F.col("wrod")))
declare("acting", lambda df: df if df.count() else df)
"""


def test_spark_s_own_words_go_to_the_log_and_ours_to_the_terminal(make_place: MakePlace) -> None:
    place = make_place(pipelines=PIPELINES, spark={"master": "local[1]"})
    place.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, at timestamptz)",
        "INSERT INTO t VALUES (1, 'no number', now())",
    )
    done = tidegate(place.folder, "run", "by_column", "by_text", "by_name", *IN_ORDER)
    assert done.code == FAILED
    lines = done.err.splitlines()
    assert len(lines) == 6, done.err
    assert lines[0].startswith("error: by_column: the transformation of sync by_column failed")
    assert all(line.startswith(("error: ", "  fix: ")) for line in lines)
    (summary,) = done.out.splitlines()
    assert summary.startswith("3 syncs: 0 loaded, 0 without anything new, 3 failed;")
    log = (place.folder / ".tidegate" / "logs" / "spark-python.log").read_text(encoding="utf-8")
    assert "DataFrameQueryContextLogger" in log
    assert "CAST_INVALID_INPUT" in log


def test_a_value_that_cannot_pass_is_the_source_s_also_when_the_function_runs_the_query(
    make_place: MakePlace,
) -> None:
    place = make_place(pipelines=PIPELINES, spark={"master": "local[1]"})
    place.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, at timestamptz)",
        "INSERT INTO t VALUES (1, '1', 'infinity')",
    )
    done = tidegate(place.folder, "run", "acting", "by_column", *IN_ORDER)
    assert done.code == FAILED
    for number, name in enumerate(("acting", "by_column")):
        message, fix = done.err.splitlines()[2 * number : 2 * number + 2]
        assert message.startswith(f"error: {name}: column at holds infinity")
        assert "read a view that casts the column or leaves it out" in fix
    assert len(done.err.splitlines()) == 4, done.err
