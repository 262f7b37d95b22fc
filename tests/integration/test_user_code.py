"""The user's modules and functions: found by Spark's workers, and what is wrong in them told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.commands import FAILED, USAGE, tidegate
from integration.conftest import MakePlace, MakeProject, Place
from tidegate.core.errors import SettingsError, TransformError
from tidegate.project import Project
from tidegate.spark.user_code import user_code

PIPELINES = """\
import tidegate as tg
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import rates


@F.udf(LongType())
def priced(amount):
    return rates.price(amount)


@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", key="id", cursor="id",
         partitions=1)
def orders(df):
    return df.withColumn("price", priced("amount"))
"""
MakeShop = Callable[..., tuple[Project, Place]]


@pytest.fixture
def make_shop(make_project: MakeProject) -> MakeShop:
    def make(factor: int, pipelines: str = PIPELINES) -> tuple[Project, Place]:
        project, place = make_project(pipelines=pipelines)
        write_rates(place.folder, f"def price(amount):\n    return amount * {factor}\n")
        place.source.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint NOT NULL)",
            "INSERT INTO orders SELECT n, n FROM generate_series(1, 3) n",
        )
        return project, place

    return make


def write_rates(folder: Path, text: str) -> None:
    (folder / "rates.py").write_text(text)


def prices(place: Place) -> list[int]:
    return [price for (price,) in place.target.execute("SELECT price FROM raw.orders ORDER BY id")]


def test_projects_of_one_process_use_their_own_modules_as_they_are_now(
    make_shop: MakeShop,
) -> None:
    gone, there = make_shop(5)
    code = user_code(gone.settings)
    assert "orders" in gone.syncs
    gone.context.spark.ship(code)
    shutil.rmtree(there.folder)  # which does not disturb the others
    (first, one), (second, two) = make_shop(10), make_shop(100)
    first.run("orders")
    second.run("orders")
    assert prices(two) == [100, 200, 300]
    write_rates(one.folder, "def price(amount):\n    return amount * 7\n")
    one.source.execute("INSERT INTO orders VALUES (4, 4)")
    one.open(first.context.spark).run("orders")
    assert prices(one) == [10, 20, 30, 28]


def test_a_module_that_the_workers_cannot_import_is_named(
    make_shop: MakeShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far_rates.py").write_text("def price(amount):\n    return amount\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    project, place = make_shop(1, PIPELINES.replace("rates", "far_rates"))
    with pytest.raises(TransformError) as caught:
        project.run("orders")
    assert caught.value.message == "Spark's workers cannot import far_rates"
    assert "beside the pipelines file" in (caught.value.hint or "")
    (place.folder / "money").mkdir()
    (place.folder / "money" / "__init__.py").symlink_to("/proc/self/mem")
    with pytest.raises(TransformError, match=r"money/__init__\.py cannot be sent"):
        place.open(project.context.spark).run("orders")


def test_a_mistake_in_a_module_is_shown_where_it_is(make_shop: MakeShop) -> None:
    project, place = make_shop(1)
    for line, kind in (("factor = factor / 0", "ZeroDivision"), ("factor = = 2", "SyntaxError")):
        write_rates(place.folder, f"factor = 1\n{line}\n")
        said = rf"rates\.py \(line 2\) cannot be read: {kind}"
        with pytest.raises(SettingsError, match=said):
            project.run("orders")
    # In a process of its own, since here Spark is started already.
    write_rates(place.folder, "")
    (place.folder / "pipelines.py").write_text(PIPELINES.replace("(LongType())", '("bigint")'))
    done = tidegate(place.folder, "plan")
    assert done.code == USAGE
    assert "pipelines.py (line 8) needs Spark, which is not started" in done.err
    assert "LongType()" in done.err


FAILING = """
import tidegate as tg
from pyspark.sql import functions as F

def declare(name, table, function):
    tg.sync(
        source=f"shop:public.{table}", target=f"warehouse:raw.{name}", cursor="id", name=name
    )(function)

declare("by_column", "words", lambda df: df.withColumn("n", F.col("word").cast("int")))
declare("by_text", "words", lambda df: df.withColumn("n", F.expr("cast(word as int)")))
declare("by_name", "words", lambda df: df.withColumn("n", F.col("wrod")))
declare("acting", "stamps", lambda df: df if df.count() else df)
declare("passing", "stamps", lambda df: df.withColumn("n", F.lit(1)))
"""


def test_spark_s_own_words_go_to_the_log_and_ours_to_the_terminal(make_place: MakePlace) -> None:
    place = make_place(pipelines=FAILING, spark={"master": "local[1]"})
    place.source.execute(
        "CREATE TABLE words (id int PRIMARY KEY, word text)",
        "INSERT INTO words VALUES (1, 'no number')",
        "CREATE TABLE stamps (id int PRIMARY KEY, at timestamptz)",
        "INSERT INTO stamps VALUES (1, 'infinity')",
    )
    names = ("by_column", "by_text", "by_name", "acting", "passing")
    done = tidegate(place.folder, "run", *names, "--concurrency", "1")
    assert done.code == FAILED
    lines = done.err.splitlines()
    assert len(lines) == 2 * len(names), done.err
    assert all(line.startswith(("error: ", "  fix: ")) for line in lines)
    assert lines[0].startswith("error: by_column: the transformation of sync by_column failed")
    # A value that cannot pass is the source's, also when the function runs the query.
    for number, name in ((3, "acting"), (4, "passing")):
        message, fix = lines[2 * number : 2 * number + 2]
        assert message.startswith(f"error: {name}: column at holds infinity")
        assert "read a view that casts the column or leaves it out" in fix
    (summary,) = done.out.splitlines()
    assert summary.startswith("5 syncs: 0 loaded, 0 without anything new, 5 failed;")
    log = (place.folder / ".tidegate" / "logs" / "spark-python.log").read_text(encoding="utf-8")
    assert "DataFrameQueryContextLogger" in log
    assert "CAST_INVALID_INPUT" in log
