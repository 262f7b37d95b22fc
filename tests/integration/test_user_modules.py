"""Modules beside pipelines.py: found here and by Spark's workers, and never those of another."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.conftest import MakeProject, Place
from tidegate.errors import SettingsError, TransformError
from tidegate.pipeline.user_code import user_code
from tidegate.project import Project

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


@pytest.fixture
def make_shop(make_project: MakeProject):
    def make(factor: int, pipelines: str = PIPELINES) -> tuple[Project, Place]:
        project, place = make_project(pipelines=pipelines)
        write_rates(place.folder, factor)
        place.source.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint NOT NULL)",
            "INSERT INTO orders SELECT n, n FROM generate_series(1, 3) n",
        )
        return project, place

    return make


def write_rates(folder: Path, factor: int) -> None:
    (folder / "rates.py").write_text(f"def price(amount):\n    return amount * {factor}\n")


def prices(place: Place) -> list[int]:
    return [price for (price,) in place.target.execute("SELECT price FROM raw.orders ORDER BY id")]


def test_two_projects_of_one_process_use_their_own_modules_of_one_name(make_shop) -> None:
    (first, one), (second, two) = make_shop(10), make_shop(100)
    first.run("orders")
    second.run("orders")
    one.source.execute("INSERT INTO orders VALUES (4, 4)")
    first.run("orders")
    assert prices(one) == [10, 20, 30, 40]
    assert prices(two) == [100, 200, 300]


def test_a_project_opened_again_uses_what_its_modules_say_now(make_shop) -> None:
    project, place = make_shop(10)
    project.run("orders")
    write_rates(place.folder, 7)
    place.source.execute("INSERT INTO orders VALUES (4, 4)")
    place.open(project.context.spark).run("orders")
    assert prices(place) == [10, 20, 30, 28]


def test_a_project_whose_folder_is_gone_does_not_disturb_the_next_one(make_shop) -> None:
    project, place = make_shop(10)
    code = user_code(project.settings)
    assert "orders" in project.syncs
    project.context.spark.ship(code)
    shutil.rmtree(place.folder)
    other, there = make_shop(100)
    other.run("orders")
    assert prices(there) == [100, 200, 300]


def test_a_module_that_is_nowhere_near_the_workers_is_named(make_shop, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far_rates.py").write_text("def price(amount):\n    return amount\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    project, _ = make_shop(1, PIPELINES.replace("rates", "far_rates"))
    with pytest.raises(TransformError) as caught:
        project.run("orders")
    assert caught.value.message == "Spark's workers cannot import far_rates"
    assert "beside the pipelines file" in (caught.value.hint or "")


def test_an_unreadable_module_is_named(make_shop) -> None:
    project, place = make_shop(1)
    (place.folder / "money").mkdir()
    (place.folder / "money" / "__init__.py").symlink_to("/proc/self/mem")
    with pytest.raises(TransformError, match=r"money/__init__\.py cannot be sent"):
        project.run("orders")


def test_a_line_that_needs_spark_while_the_file_is_read_is_named(make_shop) -> None:
    # In a process of its own, since here Spark is started already.
    _, place = make_shop(1, PIPELINES.replace("(LongType())", '("bigint")'))
    command = [sys.executable, "-m", "tidegate.cli.main", "plan", "--project", str(place.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pipelines.py (line 8) needs Spark, which is not started" in done.stderr
    assert "LongType()" in done.stderr


def test_a_mistake_in_a_module_is_shown_where_it_is(make_shop) -> None:
    project, place = make_shop(1)
    (place.folder / "rates.py").write_text("factor = 1\nfactor = factor / 0\n")
    with pytest.raises(SettingsError, match=r"rates\.py \(line 2\) cannot be read: ZeroDivision"):
        project.run("orders")
    (place.folder / "rates.py").write_text("factor = 1\nfactor = = 2\n")
    with pytest.raises(SettingsError, match=r"rates\.py \(line 2\) cannot be read: SyntaxError"):
        project.run("orders")
