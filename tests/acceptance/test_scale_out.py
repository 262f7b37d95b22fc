"""The same project on a cluster of executors and on a Spark Connect server, killed and exact."""

from __future__ import annotations

from decimal import Decimal

import pytest

from acceptance import oracle
from acceptance.conftest import CONNECT, MakeScene
from acceptance.harness import Scene
from acceptance.processes import assert_killed
from acceptance.spark_server import SparkServer
from acceptance.test_named_points import IN_PROCESS

LOCAL_CLUSTER = {"master": "local-cluster[2,1,1024]"}
NAMES = ("orders", "priced")
PIPELINES = """\
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import tidegate as tg
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

import rates


@dataclass
class Price:
    cents: int


@lru_cache
def price(cents: int, region: str) -> Price:
    return Price(cents * rates.rate(region))


@F.udf(LongType())
def cents(total, region):
    return price(int(total * 100), region).cents


def louder(frames: Iterator) -> Iterator:
    from money.words import loud

    for frame in frames:
        frame["status"] = frame["status"].map(loud)
        yield frame.assign(place=f"{os.getcwd()} {rates.__file__}")


@tg.sync(source="source:public.orders", target="warehouse:raw.priced",
         key=["region", "id"], cursor="updated_at", batch_rows=60, partitions=1)
def priced(df):
    small = df.select("region", "id", "status", "seq", "updated_at",
                      cents("total", "region").alias("cents"),
                      F.date_format("updated_at", "HH:mm").alias("minute"))
    placed = StructType([*small.schema, StructField("place", StringType())])
    return small.mapInPandas(louder, placed)
"""
RATES = """\
from functools import lru_cache

from money import FACTOR

RATES = {"north": 1, "south": 2, "Øst": 3, "o'west": 5}


@lru_cache
def rate(region):
    return RATES[region] * FACTOR
"""
WORDS = """\
def loud(word):
    return word.upper() if isinstance(word, str) else None
"""
MODULES = {
    "rates.py": RATES,
    "money/__init__.py": "FACTOR = 1\n",
    "money/words.py": WORDS,
}
_RATES = {"north": 1, "south": 2, "Øst": 3, "o'west": 5}


def make(make_scene: MakeScene, spark: dict[str, str] = CONNECT) -> Scene:
    """Syncs with and without code, and modules beside the code."""
    scene = make_scene(2, spark=spark, batch_rows=60)
    for name, source in {"pipelines.py": PIPELINES, **MODULES}.items():
        file = scene.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source, encoding="utf-8")
    scene.change()
    return scene


def kill_at(scene: Scene, name: str, point: str) -> None:
    assert_killed(scene.start(name, f"{point}=kill"), point)


def check_transformed(scene: Scene, factor: int = 1) -> None:
    columns = ("region", "id", "status", "seq", "updated_at", "total")
    rows = oracle.read_rows(scene.source, ("public", "orders"), columns, scene.key)
    expected: list[oracle.Row] = []
    for region, number, status, seq, updated_at, total in rows:
        assert region is not None
        assert updated_at is not None
        cents = int(Decimal(total or "") * 100) * _RATES[region] * factor
        loud = status and status.upper()
        expected.append((region, number, loud, seq, updated_at, str(cents), updated_at[11:16]))
    made = ("region", "id", "status", "seq", "updated_at", "cents", "minute")
    found = oracle.read_rows(scene.destination, ("raw", "priced"), made, scene.key)
    oracle.assert_same_rows(expected, found)
    check_place(scene)


def check_place(scene: Scene) -> None:
    """The workers neither stood in the project's folder nor took the modules from it."""
    places = oracle.scalar(
        scene.destination, "SELECT string_agg(DISTINCT place, ' ') FROM raw.priced"
    )
    assert isinstance(places, str)
    assert "tidegate_" in places
    assert str(scene.folder) not in places


def test_every_movement_is_exact_after_kills_and_a_changed_module_is_seen(
    make_scene: MakeScene,
) -> None:
    scene = make(make_scene)
    for name, point in zip(NAMES, ("publish.applied@2", "stage.done@2"), strict=True):
        kill_at(scene, name, point)
        scene.change()
    scene.run(*NAMES)
    scene.assert_exact()
    check_transformed(scene)
    scene.assert_swept()
    (scene.folder / "money" / "__init__.py").write_text("FACTOR = 10\n")
    ended = scene.command("run", "priced", "--full-refresh")
    assert ended.code == 0, ended
    check_transformed(scene, factor=10)


NO_TIDEGATE = """\
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name == "tidegate":
            raise ModuleNotFoundError("No module named 'tidegate'")

sys.meta_path.insert(0, Refusing())
"""
OTHER_TIDEGATE = """\
import tidegate.version

tidegate.version.__version__ = "0.0.7"
"""
OTHER_PYTHON = """\
import sys
from collections import namedtuple

version = namedtuple("version", "major minor micro releaselevel serial")
sys.version_info = version(3, 99, 0, "final", 0)
"""


LACKS = {
    "tidegate for copying": (NO_TIDEGATE, "orders", "Spark's workers cannot import tidegate"),
    "tidegate for code": (NO_TIDEGATE, "priced", "Spark's workers cannot import tidegate"),
    "our tidegate": (OTHER_TIDEGATE, "orders", "workers have tidegate 0.0.7, but this is tidegate"),
    "our python": (OTHER_PYTHON, "orders", "workers run Python 3.99, but this is Python 3."),
}


@pytest.mark.parametrize(
    "lacking",
    [
        ("tidegate for copying",),
        pytest.param(tuple(LACKS), marks=pytest.mark.chaos),
    ],
    ids=["tidegate", "all"],
)
def test_what_the_workers_or_the_source_lack_is_said_in_one_line(
    make_scene: MakeScene, spark_server: SparkServer, lacking: tuple[str, ...]
) -> None:
    scene = make(make_scene)
    for workers, name, message in (LACKS[lack] for lack in lacking):
        with spark_server.broken(workers):
            ended = scene.command("run", name)
        assert ended.code == 1, ended
        assert message in ended.err, ended
        assert "docs/guides/cluster.md" in ended.err, ended
        assert len(ended.err.splitlines()) <= 3, ended
    source = (scene.folder / "pipelines.py").read_text().replace('"seq", ', '"nosuch", ')
    (scene.folder / "pipelines.py").write_text(source)
    ended = scene.command("run", "priced")
    assert ended.code == 1, ended
    assert "the transformation of sync priced failed" in ended.err, ended
    assert "nosuch" in ended.err, ended
    assert "Traceback" not in ended.err, ended


@pytest.mark.chaos
@pytest.mark.parametrize("point", IN_PROCESS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spark", [LOCAL_CLUSTER, CONNECT], ids=["local-cluster", "connect"])
def test_every_movement_is_exact_after_a_kill_at_every_point(
    make_scene: MakeScene, spark: dict[str, str], name: str, point: str
) -> None:
    scene = make(make_scene, spark)
    scene.change(5)
    kill_at(scene, name, point)
    scene.change()
    scene.run(name)
    scene.change()
    kill_at(scene, name, point)
    scene.run(*NAMES)
    scene.assert_exact()
    check_transformed(scene)
    scene.assert_swept()
