"""`tg.publish`: a DataFrame of the user's own, in one line, exactly once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tidegate as tg
from integration.conftest import MakeProject, Place
from tidegate.errors import BusyError, ChecksFailed, RemovalRefused, SettingsError, UsageError
from tidegate.insight.markers import forget_marker
from tidegate.model.publish import PublishReport
from tidegate.model.relation import Endpoint
from tidegate.project import Project
from tidegate.runtime.hold import hold_table
from tidegate.spark.session import SparkSessions

Made = tuple[Project, Place]
TARGET = "warehouse:marts.revenue"
SCHEMA = "id int, name string"
COUNT_JOBS = "SELECT kind, status, count(*)::int FROM tidegate_control.jobs GROUP BY 1, 2"


@pytest.fixture
def spark(warm_spark: SparkSessions) -> SparkSession:
    """The user's own session."""
    return warm_spark.get()


@pytest.fixture
def made(make_project: MakeProject) -> Made:
    """A project without syncs, on three databases."""
    return make_project(databases=3)


def frame(spark: SparkSession, *rows: tuple[Any, ...], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


def unreadable(spark: SparkSession) -> DataFrame:
    """A DataFrame that fails as soon as anybody computes it."""
    return spark.range(3).select(f.raise_error("was computed").cast("int").alias("id"))


def rows_of(place: Place, table: str = "marts.revenue") -> list[tuple[Any, ...]]:
    return place.target.execute(f"SELECT * FROM {table} ORDER BY 1, 2")


def markers_of(place: Place) -> list[tuple[Any, ...]]:
    return place.target.execute(
        "SELECT update_id, target_table FROM tidegate.table_updates ORDER BY 1, 2"
    )


def staging_of(place: Place) -> int:
    found: int = place.target.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'stg\\_%'")
    return found


def test_a_dataframe_is_in_its_table_with_its_marker(made: Made, spark: SparkSession) -> None:
    project, place = made
    df = frame(spark, (1, "a"), (2, "b"))
    report = tg.publish(df, target=TARGET, key="id", update_id="r-1", project=project)
    assert report == PublishReport("done", 2, 2, 0, False, "r-1")
    assert rows_of(place) == [(1, "a"), (2, "b")]
    assert markers_of(place) == [("r-1", "marts.revenue")]
    assert place.control.execute(COUNT_JOBS) == [("publish", "done", 1)]
    assert staging_of(place) == 0


def test_a_second_publish_does_nothing_and_does_not_read_the_dataframe(
    made: Made, spark: SparkSession
) -> None:
    project, place = made
    project.publish(frame(spark, (1, "a")), target=TARGET, key="id", update_id="r-1")
    again = project.publish(unreadable(spark), target=TARGET, key="id", update_id="r-1")
    assert again == PublishReport("already", 0, 0, 0, True, "r-1")
    assert rows_of(place) == [(1, "a")]
    assert place.control.execute(COUNT_JOBS) == [("publish", "done", 1)]


def test_one_update_id_in_two_tables_is_two_publishes(made: Made, spark: SparkSession) -> None:
    project, place = made
    for table in ("marts.a", "marts.b"):
        df = frame(spark, (1, table))
        report = project.publish(df, target=f"warehouse:{table}", key="id", update_id="day-1")
        assert not report.already
    assert rows_of(place, "marts.a") == [(1, "marts.a")]
    assert rows_of(place, "marts.b") == [(1, "marts.b")]
    assert markers_of(place) == [("day-1", "marts.a"), ("day-1", "marts.b")]


def test_a_forgotten_marker_lets_the_publish_happen_again(made: Made, spark: SparkSession) -> None:
    project, place = made
    project.publish(frame(spark, (1, "a")), target=TARGET, key="id", update_id="r-1")
    forget_marker(project.context, Endpoint.parse(TARGET), "r-1")
    report = project.publish(frame(spark, (1, "b")), target=TARGET, key="id", update_id="r-1")
    assert not report.already
    assert rows_of(place) == [(1, "b")]


def test_a_publish_moves_no_watermark(made: Made, spark: SparkSession) -> None:
    project, place = made
    project.publish(frame(spark, (1, "a")), target=TARGET, key="id", update_id="r-1")
    assert place.target.execute("SELECT * FROM tidegate.etl_state") == []
    assert place.target.execute("SELECT * FROM tidegate.watermark_log") == []


def test_merge_updates_by_key_and_leaves_equal_rows_alone(made: Made, spark: SparkSession) -> None:
    project, place = made
    df = frame(spark, (1, "a"), (2, "b"), (3, "c"))
    project.publish(df, target=TARGET, key="id", update_id="1")
    later = frame(spark, (1, "a"), (2, "B"), (4, "d"))
    report = project.publish(later, target=TARGET, key="id", update_id="2")
    assert (report.rows, report.changed) == (3, 2)
    assert rows_of(place) == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]


def test_a_cursor_keeps_older_rows_out_and_chooses_between_duplicates(
    made: Made, spark: SparkSession
) -> None:
    project, place = made
    schema = "id int, v int, name string"
    options = {"target": TARGET, "key": "id", "cursor": "v", "duplicates": "newest"}
    first = frame(spark, (1, 5, "new"), (1, 4, "old"), (2, 1, "b"), schema=schema)
    project.publish(first, update_id="1", **options)
    project.publish(
        frame(spark, (1, 3, "late"), (2, 2, "B"), schema=schema), update_id="2", **options
    )
    assert rows_of(place) == [(1, 5, "new"), (2, 2, "B")]


def test_append_without_a_key_adds_each_publish_once(made: Made, spark: SparkSession) -> None:
    project, place = made
    for update_id in ("1", "2", "2"):
        df = frame(spark, (1, "a"), (1, "a"))
        project.publish(df, target=TARGET, mode="append", update_id=update_id)
    assert rows_of(place) == [(1, "a")] * 4


def test_append_with_a_key_keeps_every_version(made: Made, spark: SparkSession) -> None:
    project, place = made
    for update_id, name in (("1", "a"), ("2", "b")):
        df = frame(spark, (1, name))
        project.publish(df, target=TARGET, key="id", mode="append", update_id=update_id)
    assert rows_of(place) == [(1, "b")]
    versions = "SELECT name, update_id FROM marts.revenue_raw ORDER BY load_seq"
    assert place.target.execute(versions) == [("a", "1"), ("b", "2")]


def test_delete_insert_replaces_the_keys_it_brings(made: Made, spark: SparkSession) -> None:
    project, place = made
    options = {"target": TARGET, "key": "id", "mode": "delete_insert"}
    project.publish(frame(spark, (1, "a"), (2, "b")), update_id="1", **options)
    project.publish(frame(spark, (2, "B"), (3, "c")), update_id="2", **options)
    assert rows_of(place) == [(1, "a"), (2, "B"), (3, "c")]


@pytest.mark.parametrize("key", ["id", None])
def test_replace_leaves_exactly_the_dataframe(
    made: Made, spark: SparkSession, key: str | None
) -> None:
    project, place = made
    options = {"target": TARGET, "key": key, "mode": "replace"}
    project.publish(frame(spark, (1, "a"), (2, "b")), update_id="1", **options)
    project.publish(frame(spark, (2, "B"), (3, "c")), update_id="2", **options)
    assert rows_of(place) == [(2, "B"), (3, "c")]


def test_replace_that_takes_most_rows_away_asks(made: Made, spark: SparkSession) -> None:
    project, place = made
    options = {"target": TARGET, "key": "id", "mode": "replace"}
    most, few = (spark.range(n).selectExpr("int(id)", "'a' AS name") for n in (120, 10))
    project.publish(most, update_id="1", **options)
    with pytest.raises(RemovalRefused, match="110 of the 120 rows") as refused:
        project.publish(few, update_id="2", **options)
    assert "allow_removal=True" in str(refused.value)
    assert (len(rows_of(place)), staging_of(place)) == (120, 0)
    project.publish(few, update_id="2", allow_removal=True, **options)
    assert len(rows_of(place)) == 10


def test_replace_spares_a_number_that_the_table_gives_its_rows(
    made: Made, spark: SparkSession
) -> None:
    project, place = made
    place.target.execute(
        "CREATE SCHEMA marts",
        "CREATE TABLE marts.revenue (id int, name text,"
        " number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
    )
    for update_id in ("1", "2"):
        df = frame(spark, (7, update_id))
        project.publish(df, target=TARGET, mode="replace", update_id=update_id)
    assert rows_of(place) == [(7, "2", 2)]


def test_an_empty_dataframe_is_published_with_its_marker(made: Made, spark: SparkSession) -> None:
    project, place = made
    project.publish(frame(spark, (1, "a")), target=TARGET, key="id", update_id="1")
    empty = project.publish(frame(spark), target=TARGET, key="id", update_id="2")
    assert (empty.status, empty.rows, empty.changed) == ("done", 0, 0)
    assert rows_of(place) == [(1, "a")]
    project.publish(frame(spark), target=TARGET, key="id", mode="replace", update_id="3")
    assert rows_of(place) == []
    assert [update_id for update_id, _ in markers_of(place)] == ["1", "2", "3"]


def test_the_primary_key_of_the_target_is_the_default_key(made: Made, spark: SparkSession) -> None:
    project, place = made
    place.target.execute(
        "CREATE SCHEMA marts", "CREATE TABLE marts.revenue (name text PRIMARY KEY, id int)"
    )
    project.publish(frame(spark, (1, "a")), target=TARGET, update_id="1")
    project.publish(frame(spark, (2, "a")), target=TARGET, update_id="2")
    assert rows_of(place) == [("a", 2)]


def test_checks_and_statements_belong_to_the_commit(made: Made, spark: SparkSession) -> None:
    project, place = made
    options: dict[str, Any] = {
        "target": TARGET,
        "key": "id",
        "checks": {"positive": "id > 0"},
        "reject_limit": "50%",
        "before_sql": "CREATE TABLE IF NOT EXISTS said (what text)",
        "after_sql": ["INSERT INTO said VALUES ('after')"],
    }
    report = project.publish(frame(spark, (1, "a"), (-1, "b")), update_id="1", **options)
    assert (report.rows, report.changed, report.rejected) == (2, 1, 1)
    assert rows_of(place) == [(1, "a")]
    assert place.target.value("SELECT row ->> 'name' FROM marts.revenue_rejected") == "b"
    with pytest.raises(ChecksFailed):
        project.publish(frame(spark, (-2, "c")), update_id="2", **{**options, "reject_limit": 0})
    assert place.target.execute("SELECT what FROM said") == [("after",)]
    assert markers_of(place) == [("1", "marts.revenue")]
    assert staging_of(place) == 0
    assert place.control.execute(COUNT_JOBS + " ORDER BY 2") == [
        ("publish", "done", 1),
        ("publish", "failed", 1),
    ]


def test_every_type_that_has_an_equal_arrives(made: Made, spark: SparkSession) -> None:
    project, place = made
    spark = spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    df = spark.sql(
        "SELECT true AS a, 1Y AS b, 2S AS c, 3 AS d, 4L AS e, float(1.5) AS f, 2.5D AS g,"
        " 123.45BD AS h, 'Ünïcode' AS i, X'00FF' AS j, DATE'2026-02-28' AS k,"
        " TIMESTAMP'2026-11-01 09:00:00.123456' AS l, TIMESTAMP_NTZ'2026-11-01 09:00:00' AS m,"
        " CAST(NULL AS string) AS `N n`"
    )
    project.publish(df, target=TARGET, key="e", update_id="1")
    assert place.target.execute(
        'SELECT a, b, c, d, e, f, g, h::text, i, j, k::text, l::text, m::text, "N n"'
        " FROM marts.revenue"
    ) == [
        (
            *(True, 1, 2, 3, 4, 1.5, 2.5, "123.45", "Ünïcode", b"\x00\xff", "2026-02-28"),
            *("2026-11-01 00:00:00.123456+00", "2026-11-01 09:00:00", None),
        )
    ]
    types = place.target.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'marts.revenue'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert [kind for (kind,) in types] == [
        *("boolean", "smallint", "smallint", "integer", "bigint", "real", "double precision"),
        *("numeric(5,2)", "text", "bytea", "date", "timestamp with time zone"),
        *("timestamp without time zone", "text"),
    ]


def test_text_goes_into_columns_of_types_that_spark_does_not_have(
    made: Made, spark: SparkSession
) -> None:
    project, place = made
    place.target.execute(
        "CREATE SCHEMA marts",
        "CREATE TYPE mood AS ENUM ('fine', 'angry')",
        "CREATE TABLE marts.revenue"
        " (id int PRIMARY KEY, u uuid, j jsonb, m mood, v varchar(3), n numeric)",
    )
    number = "11111111-2222-3333-4444-555555555555"
    schema = "id int, u string, j string, m string, v string, n string"
    df = frame(spark, (1, number, '{"a": 1}', "angry", "abc", "1.50"), schema=schema)
    project.publish(df, target=TARGET, update_id="1")
    assert place.target.execute(
        "SELECT u::text, j -> 'a', m::text, v, n::text FROM marts.revenue"
    ) == [(number, 1, "angry", "abc", "1.50")]


def test_the_session_of_the_user_stays_as_it_was(made: Made, spark: SparkSession) -> None:
    project, _ = made
    before = dict(spark.conf.getAll)
    active = SparkSession.getActiveSession()
    project.context.spark = SparkSessions(project.settings.spark, project.settings.state_directory)
    with project:
        df = frame(spark, (1, "a"))
        tg.publish(df, target=TARGET, key="id", update_id="1", project=project)
        assert not project.context.spark.started
    assert dict(spark.conf.getAll) == before
    assert SparkSession.getActiveSession() is active
    assert not set(spark.sparkContext.getJobTags())
    assert df.count() == 1


def test_the_project_is_found_by_path_folder_and_environment(
    made: Made, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, place = made
    options = {"target": TARGET, "key": "id"}
    tg.publish(frame(spark, (1, "a")), update_id="1", project=place.folder, **options)
    (place.folder / "jobs").mkdir()
    monkeypatch.chdir(place.folder / "jobs")
    tg.publish(frame(spark, (2, "b")), update_id="2", **options)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(SettingsError, match=r"no tidegate\.toml in") as caught:
        tg.publish(frame(spark, (3, "c")), update_id="3", **options)
    assert "TIDEGATE_PROJECT_DIR" in str(caught.value)
    monkeypatch.setenv("TIDEGATE_PROJECT_DIR", str(place.folder))
    tg.publish(frame(spark, (3, "c")), update_id="3", **options)
    assert rows_of(place) == [(1, "a"), (2, "b"), (3, "c")]


def test_threads_publish_into_tables_of_their_own(made: Made, spark: SparkSession) -> None:
    project, place = made
    tables = [f"marts.t{number}" for number in range(4)]
    done: list[bool] = []

    def work(table: str) -> None:
        for number in range(3):
            report = project.publish(
                frame(spark, (number, table)),
                target=f"warehouse:{table}",
                key="id",
                update_id=f"{number}",
            )
            done.append(report.already)

    threads = [threading.Thread(target=work, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [False] * 12
    for table in tables:
        assert rows_of(place, table) == [(number, table) for number in range(3)]


def test_of_two_at_once_one_publishes_and_the_other_waits_for_it(
    made: Made, spark: SparkSession
) -> None:
    project, place = made
    reports: list[PublishReport] = []

    def work() -> None:
        df = frame(spark, (1, "a"), (2, "b"))
        reports.append(project.publish(df, target=TARGET, mode="append", update_id="1"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.status for report in reports) == ["already", "already", "done"]
    assert rows_of(place) == [(1, "a"), (2, "b")]


def test_who_holds_the_table_is_told_to_those_who_do_not_wait(
    made: Made, spark: SparkSession
) -> None:
    project, place = made
    df = frame(spark, (1, "a"))
    target = Endpoint.parse(TARGET)
    request = {"kind": "repair", "name": "repair"}
    with hold_table(project.context, target, request, result={}, command="repair"):
        with pytest.raises(BusyError, match=r"marts\.revenue is held by job .* \(repair, running"):
            project.publish(df, target=TARGET, key="id", update_id="1", wait=0)
        waiting = threading.Thread(
            target=project.publish,
            args=(df,),
            kwargs={"target": TARGET, "key": "id", "update_id": "1"},
        )
        waiting.start()
    waiting.join()
    assert rows_of(place) == [(1, "a")]


def test_spark_stopped_and_started_again_makes_no_difference(
    made: Made, warm_spark: SparkSessions
) -> None:
    project, place = made
    old = warm_spark.get()
    df = frame(old, (1, "a"))
    project.publish(df, target=TARGET, key="id", update_id="1")
    old.stop()
    with pytest.raises(UsageError, match="a Spark session that was stopped"):
        project.publish(df, target=TARGET, key="id", update_id="2")
    again = frame(warm_spark.get(), (2, "b"))
    project.publish(again, target=TARGET, key="id", update_id="2")
    assert rows_of(place) == [(1, "a"), (2, "b")]
