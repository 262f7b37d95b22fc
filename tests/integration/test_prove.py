"""`tidegate prove`: healthy pipelines pass, planted bugs are found and named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from forked import Piped
from integration.commands import USAGE
from integration.conftest import Database, MakePlace, Place
from integration.here import tidegate
from integration.orders import contents
from tidegate.core.failpoints import POINTS
from tidegate.postgres.embedded import EmbeddedServer

ELSEWHERE = (
    *("adopt.", "evolve.", "vacuum.", "cancel.", "branch.", "intent."),
    *("maintenance.", "action.", "orphans."),
)
PASSED = [point for point in POINTS if not point.startswith(ELSEWHERE)]
ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
    "partitions": 1,
}
TABLE = """
CREATE TABLE orders (
    id         integer PRIMARY KEY,
    customer   integer NOT NULL,
    status     text NOT NULL,
    updated_at timestamptz NOT NULL
)"""
# One transaction each, as in a shop: the order of writes is that of the stamps.
ROWS = """
INSERT INTO orders
SELECT n, n % 5, 'status ' || n, timestamptz '2026-01-01 08:00+00' + n * interval '1 hour'
FROM generate_series({low}, {high}) AS n"""
# Children that copy by themselves: a proof of rows that nothing transforms needs no Spark.
NO_SPARK = """
import in_process
import tidegate.spark.session

in_process.install()
tidegate.spark.session.SparkSessions = in_process.NoSpark
"""
TESTS = Path(__file__).parents[1]
QUICK = "no_spark"
"""the folder of a project that says so"""
PATIENCE_SECONDS = 1800.0
PIPELINES = """
from pyspark.sql import Window
from pyspark.sql import functions as f

import tidegate as tg


@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at",
         partitions=1)
def orders(df):
    return {result}
"""


def without_spark(folder: Path) -> dict[str, str]:
    """What every Python is started with that shall do without Spark."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(NO_SPARK)
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(TESTS)))}


@pytest.fixture
def state(server: EmbeddedServer) -> Path:
    """The state of all projects here: their embedded server is the one that runs already."""
    return server.directory.parent


class Proved:
    """How `tidegate prove` ended, in a project of its own."""

    def __init__(self, place: Place, *arguments: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
        if (place.folder / QUICK).exists():
            environment |= without_spark(place.folder / QUICK)
        command = Piped(["tidegate", "prove", "orders", *arguments], environment, place.folder)
        self.code, self.out, self.err = command.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in self.err, self.err

    @property
    def document(self) -> dict[str, Any]:
        documents: list[dict[str, Any]] = json.loads(self.out)
        return documents[0]

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


MakeShop = Callable[..., Place]


@pytest.fixture
def make_shop(make_place: MakePlace, state: Path, request: pytest.FixtureRequest) -> MakeShop:
    """A maker of projects with a table of orders."""

    def make(
        *, sync: dict[str, Any] | None = None, result: str | None = None, spark: bool = False
    ) -> Place:
        """Where there is no `spark`, nothing of a proof needs it."""
        place = make_place(
            *([] if result else [{**ORDERS, **(sync or {})}]),
            databases=3,
            pipelines=PIPELINES.format(result=result) if result else None,
            spark={"master": "local[2]" if spark else "yarn"},
        )
        if spark:
            request.getfixturevalue("warm_workers")
        else:
            (place.folder / QUICK).mkdir()
        toml = place.folder / "tidegate.toml"
        text = toml.read_text()
        toml.write_text(text.replace("[project]\n", f'[project]\nstate = "{state}"\n', 1))
        place.source.execute(TABLE)
        return place

    return make


def fill(place: Place, rows: int = 24) -> None:
    place.source.execute(ROWS.format(low=1, high=rows))


def scratch_databases(state: Path) -> list[str]:
    server = EmbeddedServer(state / "postgres")
    found = Database(server.conninfo("postgres")).execute(
        "SELECT datname FROM pg_database WHERE datname LIKE 'tidegate\\_%' ORDER BY 1"
    )
    return [name for (name,) in found if name != "tidegate"]


MANY_TYPES = (
    "CREATE TYPE mood AS ENUM ('fine', 'angry')",
    "CREATE DOMAIN cents AS integer CHECK (VALUE >= 0)",
    "CREATE SCHEMA geo",
    'CREATE TYPE geo."Place Name" AS (street text, mood mood)',
    'ALTER TABLE orders ADD feeling mood, ADD price cents, ADD spot geo."Place Name",'
    " ADD moods mood[], ADD doc jsonb, ADD span tstzrange",
    "INSERT INTO orders SELECT n, n, 'x', timestamptz '2026-01-01' + n * interval '1 hour',"
    " 'angry', n, ROW('a \"b\", c', 'fine')::geo.\"Place Name\", '{fine,NULL}', '{\"a\": 1}',"
    " '[2026-01-01,2026-01-02)' FROM generate_series(1, 40) n",
)


def prove_sound(place: Place, state: Path, points: list[str], *arguments: str) -> None:
    """The sync survives a kill at each of these points, and its databases are left alone."""
    place.source.execute(*MANY_TYPES)
    before = contents(place.source, place.target, place.control)
    report = place.folder / "reports" / "prove.xml"
    kills = "1 kill" if len(points) == 1 else f"{len(points)} kills"
    done = Proved(place, "--junit", str(report), *arguments)
    assert done.code == 0, done
    assert done.out.splitlines()[-1] == f"orders: {kills}, 0 lost, 0 doubled"
    assert contents(place.source, place.target, place.control) == before
    assert scratch_databases(state) == []
    suite = ElementTree.parse(report).getroot()[0]
    assert suite.attrib["tests"] == str(len(points) + 1)
    assert suite.attrib["failures"] == suite.attrib["skipped"] == "0"
    names = [case.attrib["name"] for case in suite.iter("testcase")]
    for point in points:
        assert any(name.startswith(f"killed at {point} in step ") for name in names)


def test_a_sound_sync_survives_a_kill_and_its_databases_are_left_alone(
    make_shop: MakeShop, state: Path
) -> None:
    prove_sound(make_shop(), state, ["publish.moved"], "--point", "publish.moved")


@pytest.mark.chaos
def test_a_sound_sync_survives_a_kill_at_every_point_with_spark(
    make_shop: MakeShop, state: Path
) -> None:
    prove_sound(make_shop(spark=True), state, PASSED)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("result", "cause", "text"),
    [
        (
            "df.withColumn('lucky', f.rand())",
            "the transformation is not deterministic",
            "differ in lucky, first at id=1",
        ),
        ("df.withColumn('id', f.expr('id div 2'))", "the key does not tell rows apart", ""),
        (
            "df.withColumn('rank', f.row_number().over(Window.orderBy('id')))",
            "the transformation depends on how rows are cut into batches",
            "(in rank)",
        ),
    ],
)
def test_a_bug_of_a_transformation_is_caught_by_its_cause(
    make_shop: MakeShop, result: str, cause: str, text: str
) -> None:
    place = make_shop(result=result, spark=True)
    fill(place, 8)
    done = Proved(place, "--json", "--point", "publish.applied")
    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == cause
    assert text in finding["text"]
    assert 0 < finding["total_rows"] < 8
    if "lucky" in result:
        assert finding["rows"] == ["id=1"]
        assert finding["command"] == "tidegate prove orders --seed 0 --point none --key 1"
        assert done.document["different"] == 8


def test_a_key_that_does_not_tell_rows_apart_is_caught_with_two_of_them_which_can_be_kept(
    make_shop: MakeShop, state: Path
) -> None:
    place = make_shop(sync={"key": ["customer"]})
    fill(place)

    done = Proved(place, "--json", "--keep")

    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == "the key does not tell rows apart"
    assert "rows id=1 and id=6 have the same key (customer) = (1)" in finding["text"]
    assert finding["command"] == "tidegate prove orders --seed 0 --point none --key 1"
    assert done.document["lost"] == 19
    kept = done.document["kept"]
    assert kept == scratch_databases(state)
    server = EmbeddedServer(state / "postgres")
    pool = Database(server.conninfo(kept[0]))
    assert pool.value("SELECT count(*) FROM tidegate_prove.sample") == 24
    drop = [f'DROP DATABASE "{name}" WITH (FORCE)' for name in kept]
    Database(server.conninfo("postgres")).execute(*drop)


@pytest.mark.chaos
def test_a_cursor_that_is_not_monotonic_is_caught_with_the_row_that_came_too_late(
    make_shop: MakeShop,
) -> None:
    place = make_shop()
    fill(place)
    place.source.execute("UPDATE orders SET status = 'changed, not stamped' WHERE id = 5")

    done = Proved(place, "--point", "publish.moved")

    assert done.code == 1, done
    assert "the cursor is not monotonic" in done.out
    assert "row id=5 was written after id=24 but its updated_at is lower" in done.out
    assert "smallest case: 2 rows: id=24; id=5" in done.out
    assert "again: tidegate prove orders --seed 0 --point none --key 24 --key 5" in done.out
    assert done.out.splitlines()[-1] == "orders: 1 kill, 1 lost, 0 doubled"

    told = ("--seed", "0", "--point", "none", "--key", "24", "--key", "5")
    again = Proved(place, *told)
    assert again.code == 1, again
    assert "row id=5 was written after id=24" in again.out


@pytest.mark.chaos
def test_a_late_row_within_the_lookback_is_no_finding(make_shop: MakeShop) -> None:
    place = make_shop(sync={"lookback": "3 days"})
    fill(place)
    place.source.execute("UPDATE orders SET status = 'changed, not stamped' WHERE id = 5")
    done = Proved(place, "--point", "none")
    assert done.code == 0, done
    assert done.out.splitlines()[-1] == "orders: 0 kills, 0 lost, 0 doubled"


REMEMBERS_A_CRASH = """
import atexit
from pathlib import Path

import tidegate as tg

running = Path(__file__).parent / "running"
crashed = running.exists()
atexit.register(lambda: running.unlink(missing_ok=True))


@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at",
         partitions=1)
def orders(df):
    running.touch()
    return df.where("id % 2 = 0") if crashed else df
"""


@pytest.mark.chaos
def test_a_pipeline_that_loses_rows_only_after_a_kill_is_caught_with_the_point(
    make_shop: MakeShop,
) -> None:
    place = make_shop(result="df", spark=True)
    fill(place, 12)
    (place.folder / "pipelines.py").write_text(REMEMBERS_A_CRASH)

    report = place.folder / "prove.xml"
    points = ("--point", "job.claimed", "--point", "publish.applied")
    done = Proved(place, "--json", "--junit", str(report), *points)

    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == "a kill changes the result"
    assert finding["point"] == "publish.applied"
    assert "--point publish.applied" in finding["command"]
    assert done.document["lost"] > 0
    failed = [case for case in ElementTree.parse(report).iter("testcase") if len(case)]
    assert [case.attrib["name"].split(" in ")[0] for case in failed] == [
        "killed at publish.applied"
    ]


@pytest.mark.chaos
def test_rows_are_made_up_for_an_empty_source_and_the_server_is_stopped_again(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS, spark={"master": "yarn"})
    (place.folder / QUICK).mkdir()
    place.source.execute(TABLE)
    done = Proved(place, "--point", "none")
    assert done.code == 0, done
    assert "note: public.orders is empty: 60 rows were made up by type" in done.out
    assert not EmbeddedServer(place.folder / ".tidegate" / "postgres").is_running()


def test_what_cannot_be_proved_is_refused_before_anything_is_done(make_shop: MakeShop) -> None:
    place = make_shop()
    for arguments, said in (
        (("--point", "publish.aplied"), "did you mean publish.applied"),
        (("--rows", "0"), "--rows 0 is out of range"),
    ):
        done = tidegate(place.folder, "prove", "orders", *arguments)
        assert done.code == USAGE, done
        assert said in done.err
    place.source.execute("ALTER TABLE orders ADD shape polygon NOT NULL")
    done = tidegate(place.folder, "prove", "orders")
    assert done.code == 1
    assert "column shape of type polygon: there is nothing to prove with" in done.err
