"""`tg.publish`: a DataFrame of the user's own, in one line, exactly once; or refused by name."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tidegate as tg
from databases import Databases
from integration.conftest import Place
from integration.shared_places import shared_places
from tidegate.admin.marker import forget_marker
from tidegate.core.errors import (
    BusyError,
    ChecksFailed,
    DeclarationError,
    DestinationError,
    RemovalRefused,
    SettingsError,
    TransformError,
    UsageError,
)
from tidegate.core.relation import Endpoint
from tidegate.jobs.attempt import hold_table
from tidegate.jobs.sweeper import Sweeper
from tidegate.load.sources.dataframe import PublishReport
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

Rows = list[tuple[Any, ...]]


class Shop:
    """A project without syncs, and a table of its own for each test."""

    def __init__(self, place: Place, table: str) -> None:
        self.place = place
        self.table = f"marts.{table}"
        self.target = f"warehouse:{self.table}"
        self.project: Project = place.open()

    def publish(self, df: object, update_id: str, **options: Any) -> PublishReport:
        given = {"target": self.target, **options}
        return self.project.publish(df, update_id=update_id, **given)  # type: ignore[arg-type]

    def create(self, columns: str) -> None:
        self.place.target.execute(f"CREATE TABLE {self.table} ({columns})")

    def rows(self, table: str | None = None) -> Rows:
        return self.place.target.execute(f"SELECT * FROM {table or self.table} ORDER BY 1, 2")

    def markers(self) -> list[str]:
        found = self.place.target.execute(
            f"SELECT update_id FROM tidegate.table_updates WHERE target_table = '{self.table}'"
            " ORDER BY 1"
        )
        return [update_id for (update_id,) in found]

    def jobs(self) -> list[str]:
        found = self.place.control.execute(
            "SELECT kind || ' ' || status FROM tidegate_control.jobs"
            f" WHERE payload ->> 'target' = '{self.target}' ORDER BY submitted_at"
        )
        return [text for (text,) in found]

    def staged(self) -> Rows:
        return self.place.target.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'stg\\_%'"
        )

    def refuse(self, df: object, error: type[Exception], message: str, **options: Any) -> str:
        """It fails with these words; no marker and no staging is left."""
        given = {"key": "id", "update_id": "r-1", **options}
        with pytest.raises(error, match=message) as caught:
            self.publish(df, **given)
        if self.staged():
            # Of a task that Spark had not stopped yet when another one failed.
            targets = [Endpoint.parse(self.target)]
            sweeper = Sweeper(self.project.context, actor="test", targets=lambda: targets)
            with self.project.context.plane.connect() as control:
                sweeper.run_once(control, tidy=True)
        assert self.staged() == []
        assert self.markers() == []
        return str(caught.value)


@pytest.fixture(scope="module")
def place(kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with shared_places(kept_databases, tmp_path_factory.mktemp("publish")) as make:
        place = make(databases=3)
        place.target.execute("CREATE SCHEMA marts")
        place.open().context.ledger("warehouse").ensure()
        yield place


@pytest.fixture
def shop(place: Place, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(place, f"t{zlib.crc32(request.node.name.encode())}")
    with made.project:
        yield made


@pytest.fixture
def spark(warm_spark: SparkSessions) -> SparkSession:
    """The user's own session."""
    return warm_spark.get()


def frame(spark: SparkSession, *rows: tuple[Any, ...], names: str = "id, name") -> DataFrame:
    """Rows that Spark itself has, so that no process of Python must be asked for them."""
    given = ", ".join(map(repr, rows)) or "(0, '')"
    return spark.sql(f"SELECT * FROM VALUES {given} AS t ({names}) WHERE {bool(rows)}")


def unreadable(spark: SparkSession) -> DataFrame:
    """A DataFrame that fails as soon as anybody computes it."""
    return spark.range(3).select(f.raise_error("was computed").cast("int").alias("id"))


def test_a_dataframe_is_in_its_table_once_with_its_marker(shop: Shop, spark: SparkSession) -> None:
    before, active = dict(spark.conf.getAll), SparkSession.getActiveSession()
    df = frame(spark, (1, "a"), (2, "b"))
    report = tg.publish(df, target=shop.target, key="id", update_id="r-1", project=shop.project)
    assert report == PublishReport("done", 2, 2, 0, False, "r-1")
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.markers() == ["r-1"]
    assert shop.jobs() == ["publish done"]
    assert shop.staged() == []
    for ledger in ("etl_state", "watermark_log"):
        assert shop.place.target.execute(f"SELECT * FROM tidegate.{ledger}") == []
    # The session of the user stays as it was.
    assert not shop.project.context.spark.started
    assert dict(spark.conf.getAll) == before
    assert SparkSession.getActiveSession() is active
    assert not set(spark.sparkContext.getJobTags())

    again = shop.publish(unreadable(spark), "r-1", key="id")
    assert again == PublishReport("already", 0, 0, 0, True, "r-1")
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.jobs() == ["publish done"]

    other = shop.publish(frame(spark, (7, "x")), "r-1", target=f"{shop.target}_other", key="id")
    assert not other.already
    assert shop.rows(f"{shop.table}_other") == [(7, "x")]

    forget_marker(shop.project.context, Endpoint.parse(shop.target), "r-1")
    assert not shop.publish(frame(spark, (1, "b")), "r-1", key="id").already
    assert shop.rows() == [(1, "b"), (2, "b")]


def test_merge_updates_by_the_primary_key_and_leaves_equal_rows_alone(
    shop: Shop, spark: SparkSession
) -> None:
    shop.create("name text, id int PRIMARY KEY")
    shop.publish(frame(spark, (1, "a"), (2, "b"), (3, "c")), "1")
    report = shop.publish(frame(spark, (1, "a"), (2, "B"), (4, "d")), "2")
    assert (report.rows, report.changed) == (3, 2)
    merged = [("B", 2), ("a", 1), ("c", 3), ("d", 4)]
    assert shop.rows() == merged
    empty = shop.publish(frame(spark), "3")
    assert (empty.status, empty.rows, empty.changed) == ("done", 0, 0)
    assert shop.rows() == merged
    assert shop.markers() == ["1", "2", "3"]


def test_a_cursor_keeps_older_rows_out_and_chooses_between_duplicates(
    shop: Shop, spark: SparkSession
) -> None:
    names = "id, v, name"
    options = {"key": "id", "cursor": "v", "duplicates": "newest"}
    first = frame(spark, (1, 5, "new"), (1, 4, "old"), (2, 1, "b"), names=names)
    shop.publish(first, "1", **options)
    shop.publish(frame(spark, (1, 3, "late"), (2, 2, "B"), names=names), "2", **options)
    assert shop.rows() == [(1, 5, "new"), (2, 2, "B")]


def test_append_adds_each_publish_once_and_with_a_key_keeps_every_version(
    shop: Shop, spark: SparkSession
) -> None:
    for update_id in ("1", "2", "2"):
        shop.publish(frame(spark, (1, "a"), (1, "a")), update_id, mode="append")
    assert shop.rows() == [(1, "a")] * 4
    keyed = {"target": f"{shop.target}_keyed", "key": "id", "mode": "append"}
    for update_id, name in (("1", "a"), ("2", "b")):
        shop.publish(frame(spark, (1, name)), update_id, **keyed)
    assert shop.rows(f"{shop.table}_keyed") == [(1, "b")]
    versions = f"SELECT name, update_id FROM {shop.table}_keyed_raw ORDER BY load_seq"
    assert shop.place.target.execute(versions) == [("a", "1"), ("b", "2")]


def test_replace_leaves_exactly_the_dataframe_and_asks_before_it_takes_most_rows_away(
    shop: Shop, spark: SparkSession
) -> None:
    options = {"key": "id", "mode": "replace"}
    most, few = (spark.range(n).selectExpr("int(id)", f"'{n}' AS name") for n in (120, 10))
    shop.publish(most, "1", **options)
    with pytest.raises(RemovalRefused, match="110 of the 120 rows") as refused:
        shop.publish(few, "2", **options)
    assert "allow_removal=True" in str(refused.value)
    assert (len(shop.rows()), shop.staged()) == (120, [])
    shop.publish(few, "2", allow_removal=True, **options)
    assert shop.rows() == [(number, "10") for number in range(10)]
    shop.publish(frame(spark), "3", **options)
    assert shop.rows() == []


def test_replace_without_a_key_spares_a_number_that_the_table_gives_its_rows(
    shop: Shop, spark: SparkSession
) -> None:
    shop.create("id int, name text, number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
    for update_id in ("1", "2"):
        shop.publish(frame(spark, (7, update_id)), update_id, mode="replace")
    assert shop.rows() == [(7, "2", 2)]


def test_checks_and_statements_belong_to_the_commit(shop: Shop, spark: SparkSession) -> None:
    options: dict[str, Any] = {
        "key": "id",
        "checks": {"positive": "id > 0"},
        "reject_limit": "50%",
        "before_sql": "CREATE TABLE IF NOT EXISTS said (what text)",
        "after_sql": ["INSERT INTO said VALUES ('after')"],
    }
    report = shop.publish(frame(spark, (1, "a"), (-1, "b")), "1", **options)
    assert (report.rows, report.changed, report.rejected) == (2, 1, 1)
    assert shop.rows() == [(1, "a")]
    rejected = f"SELECT row ->> 'name' FROM {shop.table}_rejected"
    assert shop.place.target.value(rejected) == "b"
    with pytest.raises(ChecksFailed):
        shop.publish(frame(spark, (-2, "c")), "2", **{**options, "reject_limit": 0})
    assert shop.place.target.execute("SELECT what FROM said") == [("after",)]
    assert shop.markers() == ["1"]
    assert shop.staged() == []
    assert shop.jobs() == ["publish done", "publish failed"]


def test_every_type_arrives(shop: Shop, spark: SparkSession) -> None:
    spark = spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    df = spark.sql(
        "SELECT true AS a, 1Y AS b, 2S AS c, 3 AS d, 4L AS e, float(1.5) AS f, 2.5D AS g,"
        " 123.45BD AS h, 'Ünïcode' AS i, X'00FF' AS j, DATE'2026-02-28' AS k,"
        " TIMESTAMP'2026-11-01 09:00:00.123456' AS l, TIMESTAMP_NTZ'2026-11-01 09:00:00' AS m,"
        " CAST(NULL AS string) AS `N n`"
    )
    shop.publish(df, "1", key="e")
    assert shop.place.target.execute(
        'SELECT a, b, c, d, e, f, g, h::text, i, j, k::text, l::text, m::text, "N n"'
        f" FROM {shop.table}"
    ) == [
        (
            *(True, 1, 2, 3, 4, 1.5, 2.5, "123.45", "Ünïcode", b"\x00\xff", "2026-02-28"),
            *("2026-11-01 00:00:00.123456+00", "2026-11-01 09:00:00", None),
        )
    ]
    types = shop.place.target.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{shop.table}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert [kind for (kind,) in types] == [
        *("boolean", "smallint", "smallint", "integer", "bigint", "real", "double precision"),
        *("numeric(5,2)", "text", "bytea", "date", "timestamp with time zone"),
        *("timestamp without time zone", "text"),
    ]
    # Text goes into columns of types that Spark does not have.
    shop.place.target.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'angry')",
        f"CREATE TABLE {shop.table}_text (id int PRIMARY KEY, u uuid, j jsonb, m mood, n numeric)",
    )
    number = "11111111-2222-3333-4444-555555555555"
    df = frame(spark, (1, number, '{"a": 1}', "angry", "1.50"), names="id, u, j, m, n")
    shop.publish(df, "1", target=f"{shop.target}_text")
    assert shop.place.target.execute(
        f"SELECT u::text, j -> 'a', m::text, n::text FROM {shop.table}_text"
    ) == [(number, 1, "angry", "1.50")]


def test_the_project_is_found_by_path_folder_and_environment(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = shop.place.folder
    options: dict[str, Any] = {"target": shop.target, "key": "id"}
    df = frame(spark, (1, "a"))
    assert not tg.publish(df, update_id="1", project=folder, **options).already
    (folder / "jobs").mkdir()
    monkeypatch.chdir(folder / "jobs")
    assert tg.publish(df, update_id="1", **options).already
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"no tidegate\.toml in") as caught:
        tg.publish(df, update_id="1", **options)
    assert "TIDEGATE_PROJECT_DIR" in str(caught.value)
    monkeypatch.setenv("TIDEGATE_PROJECT_DIR", str(folder))
    assert tg.publish(df, update_id="1", **options).already


def test_threads_publish_into_tables_of_their_own_and_into_one_only_the_first(
    shop: Shop, spark: SparkSession
) -> None:
    tables = [shop.target, f"{shop.target}_two", shop.target, shop.target]
    reports: list[PublishReport] = []

    def work(target: str) -> None:
        df = frame(spark, (1, "a"), (2, "b"))
        reports.append(shop.publish(df, "1", target=target, mode="append"))

    threads = [threading.Thread(target=work, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.status for one in reports) == ["already", "already", "done", "done"]
    for table in (shop.table, f"{shop.table}_two"):
        assert shop.rows(table) == [(1, "a"), (2, "b")]


def test_who_holds_the_table_is_told_to_those_who_do_not_wait(
    shop: Shop, spark: SparkSession
) -> None:
    df = frame(spark, (1, "a"))
    target, request = Endpoint.parse(shop.target), {"kind": "repair", "name": "repair"}
    with hold_table(shop.project.context, target, request, result={}, command="repair"):
        with pytest.raises(BusyError, match=r"is held by job .* \(repair, running"):
            shop.publish(df, "1", key="id", wait=0)
        waiting = threading.Thread(target=shop.publish, args=(df, "1"), kwargs={"key": "id"})
        waiting.start()
    waiting.join()
    assert shop.rows() == [(1, "a")]


WRONG_KEYWORDS: list[tuple[dict[str, Any], str]] = [
    ({"update_id": ""}, 'update_id is "".*not empty'),
    ({"update_id": None}, "update_id is null; expected text"),
    ({"target": "marts.revenue"}, 'target is "marts.revenue"; expected "connection:schema'),
    ({"target": ["warehouse:a.b", "warehouse:a.b"]}, "target is .*; expected"),
    ({"target": "nowhere:marts.revenue"}, "nowhere"),
    ({"target": "warehouse:a.b.c"}, "'a.b.c' is not a table name"),
    ({"mode": "upsert"}, 'mode is "upsert"; expected one of "merge"'),
    ({"duplicates": "newest"}, "no cursor says which"),
    ({"key": []}, "key is .*expected a column or a list"),
    ({"key": ["id", "id"]}, "key is .*different columns"),
    ({"checks": {"positive": ""}}, "checks .*expected a table of names and conditions"),
    ({"before_sql": "COMMIT"}, "before_sql is .*COMMIT would"),
    ({"partitions": 0}, "partitions is 0"),
    ({"wait": "soon"}, 'wait is "soon"'),
]
WRONG_COLUMNS: list[tuple[str, str]] = [
    ("array(1) AS tags", "column tags is array<int>"),
    ("map('a', 1) AS m", "column m is map<string,int>"),
    ("NULL AS nothing", "column nothing is void"),
    ("INTERVAL '1' DAY AS d", "column d is interval day"),
    ("2 AS id", "has column id twice"),
]
WRONG_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"key": "idd"}, "has no key column idd"),
    ({"cursor": "seen"}, "has no cursor seen"),
    ({"key": None}, "does not exist yet, and merge needs a key"),
    ({"key": None, "mode": "delete_insert"}, "and delete_insert needs a key"),
]


def test_what_is_wrong_is_named_before_a_row_is_computed(shop: Shop, spark: SparkSession) -> None:
    one, target = spark.range(1), shop.target
    for options, message in WRONG_KEYWORDS:
        shop.refuse(one, UsageError, message, **options)
    said = shop.refuse(one, SettingsError, "publish: mode", mode="x", update_id="", key=[])
    assert [line.split()[1] for line in said.splitlines()] == ["update_id", "key", "mode"]
    for expression, message in WRONG_COLUMNS:
        df = spark.sql(f"SELECT 1 AS id, {expression}")
        shop.refuse(df, DeclarationError, f"the DataFrame for {target}.*{message}")
    for options, message in WRONG_KEYS:
        shop.refuse(one, DeclarationError, message, **options)
    pandas = pd.DataFrame({"id": [1]})
    assert "spark.createDataFrame" in shop.refuse(pandas, UsageError, r"not pandas\..*DataFrame")
    for value, kind in (([(1, "a")], "list"), (None, "NoneType")):
        said = shop.refuse(value, UsageError, f"a Spark DataFrame, not {kind}")
        assert "give the DataFrame itself" in said
    stream = spark.readStream.format("rate").load()
    assert "foreachBatch" in shop.refuse(stream, UsageError, "not a stream")
    assert shop.jobs() == []


def test_a_target_that_cannot_take_the_rows_is_refused(shop: Shop, spark: SparkSession) -> None:
    shop.create("id bigint")
    shop.refuse(spark.range(1), DeclarationError, "has no primary key", key=None)
    shop.place.target.execute(f"DROP TABLE {shop.table}")
    shop.create("id smallint PRIMARY KEY")
    df = spark.sql("SELECT 1L AS id, 'a' AS name")
    said = shop.refuse(df, DestinationError, "id is smallint, the rows have bigint.*")
    assert "it has no column name: ALTER TABLE" in said
    shop.place.target.execute(
        f"DROP TABLE {shop.table}", f"CREATE VIEW {shop.table} AS SELECT 1 AS id"
    )
    shop.refuse(df, DestinationError, "is not a table")


@pytest.mark.parametrize(
    "mode",
    [
        "merge",
        *(pytest.param(one, marks=pytest.mark.chaos) for one in ("delete_insert", "replace")),
    ],
)
def test_keys_that_are_missing_or_occur_twice_are_refused(
    shop: Shop, spark: SparkSession, mode: str
) -> None:
    def ids(text: str) -> DataFrame:
        return spark.sql(f"SELECT * FROM VALUES {text} AS t (id)")

    missing = f"1 rows for {shop.table} have no value"
    shop.refuse(ids("(1), (NULL)"), DestinationError, missing, mode=mode)
    shop.refuse(ids("(1), (7), (7)"), DeclarationError, "one occurs 2 times", mode=mode)
    assert shop.place.target.execute(f"SELECT * FROM {shop.table}") == []


def test_a_dataframe_that_fails_while_it_runs_leaves_nothing(
    shop: Shop, spark: SparkSession
) -> None:
    df = spark.range(100, numPartitions=4).withColumn(
        "x", f.expr("IF(id = 99, raise_error('no such rate'), 1)").cast("int")
    )
    shop.refuse(df, TransformError, "no such rate")
    assert shop.rows() == []
    assert shop.jobs() == ["publish failed"]
