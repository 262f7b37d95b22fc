"""`tidegate prove`: healthy pipelines pass, planted bugs are found and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conftest import FAST
from integration.conftest import Database, MakePlace, Place
from tidegate.failpoints import POINTS
from tidegate.postgres.embedded import EmbeddedServer

pytestmark = pytest.mark.usefixtures("warm_workers")

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
PIPELINES = """
from pyspark.sql import Window
from pyspark.sql import functions as f

import tidegate as tg


@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at",
         partitions=1{more})
def orders(df):
    return {result}
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state of all projects here, with an embedded server that runs already."""
    folder = tmp_path_factory.mktemp("state")
    server = EmbeddedServer(folder / "postgres", FAST)
    server.start()
    yield folder
    server.stop("immediate")


class Proved:
    """How `tidegate prove` ended, in a project of its own."""

    def __init__(self, place: Place, *arguments: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.cli.main", "prove", "orders", *arguments],
            cwd=place.folder,
            env=inherited,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def document(self) -> dict[str, Any]:
        documents: list[dict[str, Any]] = json.loads(self.out)
        return documents[0]

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


MakeShop = Callable[..., Place]


@pytest.fixture
def make_shop(make_place: MakePlace, state: Path) -> MakeShop:
    """A project with a table of orders; its server is the one of the module."""

    def make(
        *, sync: dict[str, Any] | None = None, result: str | None = None, more: str = ""
    ) -> Place:
        place = make_place(
            *([] if result else [{**ORDERS, **(sync or {})}]),
            databases=3,
            pipelines=PIPELINES.format(result=result, more=more) if result else None,
            spark={"master": "local[2]"},
        )
        toml = place.folder / "tidegate.toml"
        text = toml.read_text()
        toml.write_text(text.replace("[project]\n", f'[project]\nstate = "{state}"\n', 1))
        place.source.execute(TABLE)
        return place

    return make


def fill(place: Place, rows: int = 24) -> None:
    place.source.execute(ROWS.format(low=1, high=rows))


def tables(database: Database) -> list[Any]:
    """Every table of the user's, with the transactions that wrote its rows."""
    names = database.execute(
        "SELECT schemaname, tablename FROM pg_tables"
        " WHERE schemaname <> 'information_schema' AND schemaname NOT LIKE 'pg\\_%' ORDER BY 1, 2"
    )
    return [
        (
            name,
            database.execute(f'SELECT xmin::text, t::text FROM "{schema}"."{name}" t ORDER BY 2'),
        )
        for schema, name in names
    ]


def scratch_databases(state: Path) -> list[str]:
    server = EmbeddedServer(state / "postgres")
    found = Database(server.conninfo("postgres")).execute(
        "SELECT datname FROM pg_database WHERE datname LIKE 'tidegate\\_%' ORDER BY 1"
    )
    return [name for (name,) in found if name != "tidegate"]


@pytest.mark.chaos
def test_a_sound_sync_survives_a_kill_at_every_point_and_its_databases_are_left_alone(
    make_shop: MakeShop, state: Path
) -> None:
    place = make_shop()
    place.source.execute(
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
    before = tables(place.source), tables(place.target), tables(place.control)

    report = place.folder / "reports" / "prove.xml"
    done = Proved(place, "--junit", str(report))

    assert done.code == 0, done
    assert done.out.splitlines()[-1] == f"orders: {len(PASSED)} kills, 0 lost, 0 doubled"
    assert (tables(place.source), tables(place.target), tables(place.control)) == before
    assert scratch_databases(state) == []
    suite = ElementTree.parse(report).getroot()[0]
    assert suite.attrib["tests"] == str(len(PASSED) + 1)
    assert suite.attrib["failures"] == suite.attrib["skipped"] == "0"
    names = [case.attrib["name"] for case in suite.iter("testcase")]
    for point in PASSED:
        assert any(name.startswith(f"killed at {point} in step ") for name in names)


def test_a_transformation_that_is_not_deterministic_is_caught_with_its_column(
    make_shop: MakeShop,
) -> None:
    place = make_shop(result="df.withColumn('lucky', f.rand())")
    fill(place)

    done = Proved(place, "--json", "--point", "publish.applied")

    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == "the transformation is not deterministic"
    assert "differ in lucky, first at id=1" in finding["text"]
    assert finding["rows"] == ["id=1"]
    assert finding["command"] == "tidegate prove orders --seed 0 --point none --key 1"
    assert done.document["different"] == 24


@pytest.mark.chaos
def test_a_key_that_does_not_tell_rows_apart_is_caught_with_two_of_them(
    make_shop: MakeShop,
) -> None:
    place = make_shop(sync={"key": ["customer"]})
    fill(place)

    done = Proved(place, "--json")

    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == "the key does not tell rows apart"
    assert "rows id=1 and id=6 have the same key (customer) = (1)" in finding["text"]
    assert finding["command"] == "tidegate prove orders --seed 0 --point none --key 1"
    assert done.document["lost"] == 19


@pytest.mark.chaos
def test_a_key_made_wrong_by_the_transformation_is_caught(make_shop: MakeShop) -> None:
    place = make_shop(result="df.withColumn('id', f.expr('id div 2'))")
    fill(place, 8)

    done = Proved(place, "--json")

    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == "the key does not tell rows apart"
    assert finding["total_rows"] < 8


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

    again = Proved(place, "--seed", "0", "--point", "none", "--key", "24", "--key", "5")
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


@pytest.mark.chaos
def test_a_transformation_that_looks_at_its_batch_is_caught(make_shop: MakeShop) -> None:
    place = make_shop(
        result="df.withColumn('rank', f.row_number().over(Window.orderBy('id')))",
    )
    fill(place)

    done = Proved(place, "--json", "--point", "none")

    assert done.code == 1, done
    finding = done.document["finding"]
    assert finding["cause"] == "the transformation depends on how rows are cut into batches"
    assert "(in rank)" in finding["text"]


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
    place = make_shop(result="df")
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
    place = make_place(ORDERS, spark={"master": "local[2]"})
    place.source.execute(TABLE)

    done = Proved(place, "--point", "none")

    assert done.code == 0, done
    assert "note: public.orders is empty: 60 rows were made up by type" in done.out
    assert not EmbeddedServer(place.folder / ".tidegate" / "postgres").is_running()


def test_an_empty_source_with_nothing_to_make_up_is_refused(make_shop: MakeShop) -> None:
    place = make_shop()
    place.source.execute("ALTER TABLE orders ADD shape polygon NOT NULL")
    done = Proved(place)
    assert done.code == 1
    assert "column shape of type polygon: there is nothing to prove with" in done.err


@pytest.mark.chaos
def test_kept_databases_can_be_looked_into(make_shop: MakeShop, state: Path) -> None:
    place = make_shop(sync={"key": ["customer"]})
    fill(place)

    done = Proved(place, "--json", "--keep")

    kept = done.document["kept"]
    assert kept == scratch_databases(state)
    pool = Database(EmbeddedServer(state / "postgres").conninfo(kept[0]))
    assert pool.value("SELECT count(*) FROM tidegate_prove.sample") == 24


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--point", "publish.aplied"), "did you mean publish.applied"),
        (("--rows", "0"), "--rows 0 is out of range"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(
    make_shop: MakeShop, arguments: tuple[str, ...], said: str
) -> None:
    done = Proved(make_shop(), *arguments)
    assert done.code == 2, done
    assert said in done.err
