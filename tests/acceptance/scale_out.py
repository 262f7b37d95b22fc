"""One project for every Spark: syncs with and without code, and modules beside the code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from acceptance import oracle
from acceptance.harness import Scene

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


@dataclass(frozen=True, slots=True)
class Scenario:
    """A movement, a point at which it is killed, and how to know that it is right."""

    name: str
    point: str
    check: Callable[[Scene], None]


def check_passthrough(scene: Scene) -> None:
    scene.assert_exact()


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


# Another way to move rows is one more line here.
SCENARIOS = (
    Scenario("orders", "publish.applied@2", check_passthrough),
    Scenario("priced", "stage.done@2", check_transformed),
)


def write_modules(scene: Scene) -> None:
    """The pipelines file and its modules, beside tidegate.toml."""
    for name, source in {"pipelines.py": PIPELINES, **MODULES}.items():
        file = scene.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(source, encoding="utf-8")
