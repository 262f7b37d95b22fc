"""`tidegate adopt`: a filled table goes on from where its loader stopped."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest

from integration.commands import DONE, USAGE, tidegate
from integration.conftest import MakePlace, MakeProject, Place
from integration.filled import HIGHEST, NINTH, ORDERS, adopt, fill, filled_place, refused, state
from integration.orders import contents
from tidegate.control.job_records import JobRecords
from tidegate.errors import UsageError
from tidegate.spark.session import SparkSessions


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A source of ten orders, nine of which are in the target; the tenth ties with the last two."""
    return filled_place(make_place)


def test_the_next_run_loads_what_is_missing_of_the_last_tie_and_no_more(
    place: Place, warm_spark: SparkSessions
) -> None:
    done = adopt(place, "--from-target-max")
    assert done.code == DONE, done
    assert "adopted warehouse:raw.orders with its 9 rows" in done.out
    assert f"goes on after {NINTH}; 3 rows of the source lie above" in done.out
    assert "tidegate verify orders" in done.out
    assert state(place) == [(NINTH, 1, 9, None)]
    project = place.open(warm_spark)
    report = project.run("orders")
    assert (report.rows, report.outcome.changed, report.watermark) == (3, 1, HIGHEST)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10
    assert tidegate(place.folder, "verify", "orders").code == DONE


def test_at_a_value_the_next_run_loads_what_lies_above_it(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = filled_place(make_place, "n <= 5")
    done = adopt(place, "--at", "2026-01-01 00:05+00", "--json")
    assert done.code == DONE, done
    assert done.document["watermark"] == "2026-01-01 00:05:00+00"
    assert done.document["rows_above"] == 5
    assert done.document["adopted"] is True
    report = place.open(warm_spark).run("orders")
    assert (report.rows, report.outcome.changed) == (5, 5)


def test_the_adoption_is_in_the_log_and_in_the_history(place: Place) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    moves = place.open().watermark("orders").moves()
    assert [(move.old, move.new, move.rows, move.version) for move in moves] == [
        (None, NINTH, 9, 1)
    ]
    assert moves[0].reason == f"adopted from the target's highest updated_at, {HIGHEST}"
    assert moves[0].moved_by
    context = place.open().context
    with context.plane.connect() as control:
        last = JobRecords(context.plane).last_result(control, "shop", "sync", "orders")
    assert (last["adopted"], last["adopted_rows"], last["rows"]) == (True, 9, 0)
    assert place.control.value("SELECT count(*) FROM tidegate_control.table_locks") == 0
    assert place.control.value("SELECT count(*) FROM tidegate_control.workers") == 0
    status = tidegate(place.folder, "status", "--json").document["syncs"][0]
    assert (status["state"], status["rows_synced"], status["watermark"]) == ("adopted", 9, NINTH)


def test_an_adopted_table_that_is_emptied_later_is_noticed(place: Place) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    place.target.execute("TRUNCATE raw.orders")
    done = tidegate(place.folder, "plan", "orders")
    assert "raw.orders is empty, but 9 rows are recorded in it" in done.said


def test_without_a_start_it_says_what_each_would_mean(place: Place) -> None:
    words = refused(place)
    assert "holds 9 rows" in words
    assert f"the highest updated_at is {HIGHEST}" in words
    assert "the source has 0 rows above it" in words
    assert f"--from-target-max: from {NINTH} on, 3 rows" in words
    assert "--at VALUE" in words


def test_a_dry_run_says_the_same_and_writes_nothing(place: Place) -> None:
    before = contents(place.source, place.target, place.control)
    done = adopt(place, "--from-target-max", "--dry-run")
    assert done.code == DONE
    assert "would adopt warehouse:raw.orders" in done.out
    assert f"goes on after {NINTH}" in done.out
    assert "tidegate run" not in done.out
    assert contents(place.source, place.target, place.control) == before


def test_when_all_rows_share_one_value_it_begins_just_below_it(make_place: MakePlace) -> None:
    place = filled_place(make_place, "n = 9")
    done = adopt(place, "--from-target-max", "--json")
    assert done.document["watermark"] == "2026-01-01 00:07:59.999999+00"
    assert done.document["rows_above"] == 3


@pytest.mark.parametrize(
    ("back", "start"),
    [("5 minutes", "2026-01-01 00:03:00+00"), ("1s", NINTH), ("1h", "2025-12-31 23:08:00+00")],
)
def test_back_begins_lower_but_never_higher(place: Place, back: str, start: str) -> None:
    done = adopt(place, "--from-target-max", "--back", back, "--json")
    assert done.document["watermark"] == start


def test_an_integer_cursor_works_alike(make_place: MakePlace, warm_spark: SparkSessions) -> None:
    place = filled_place(make_place, "n <= 6", cursor="id")
    assert adopt(place, "--from-target-max", "--back", "an hour").code == USAGE
    done = adopt(place, "--from-target-max", "--back", "3", "--json")
    assert (done.document["watermark"], done.document["rows_above"]) == ("3", 7)
    assert place.open(warm_spark).run("orders").outcome.changed == 4


def test_above_the_horizon_a_value_is_refused_and_the_highest_is_capped(place: Place) -> None:
    assert "lies above the horizon" in refused(place, "--at", "2099-01-01")
    place.target.execute("UPDATE raw.orders SET updated_at = '2099-01-02' WHERE id = 1")
    place.target.execute("UPDATE raw.orders SET updated_at = '2099-01-01' WHERE id = 2")
    done = adopt(place, "--from-target-max", "--json")
    assert done.code == DONE
    start = datetime.fromisoformat(done.document["watermark"])
    assert abs((datetime.now(UTC) - start).total_seconds()) < 60
    assert "lies above the source's horizon" in done.document["warnings"][0]
    assert "rows were deleted there, or its clock" in done.document["warnings"][1]


def test_an_open_transaction_of_the_source_bounds_where_it_may_begin(place: Place) -> None:
    with psycopg.connect(place.source.conninfo, application_name="late writer") as late:
        late.execute("INSERT INTO orders VALUES (11, 11, now())")
        began = late.execute("SELECT now()::text").fetchone()
        assert began is not None
        words = refused(place, "--at", began[0])
        assert "lies above the horizon" in words
        assert "late writer" in words
        place.source.execute("INSERT INTO orders VALUES (12, 12, now()), (13, 13, now())")
        place.target.execute(
            f"INSERT INTO raw.orders VALUES (12, 12, timestamptz '{began[0]}' + interval '1 s'),"
            f" (13, 13, timestamptz '{began[0]}' + interval '2 s')"
        )
        done = adopt(place, "--from-target-max", "--json")
        assert done.document["watermark"] < began[0]
        late.commit()
    assert (
        place.source.value(
            f"SELECT count(*) FROM orders WHERE updated_at > '{done.document['watermark']}'"
        )
        == 3
    )


def test_rows_that_a_given_value_passes_over_are_counted(make_place: MakePlace) -> None:
    place = filled_place(make_place, "n <= 4")
    done = adopt(place, "--at", "2026-01-01 00:06+00")
    assert done.code == DONE
    assert "2 rows of the source lie between the target's highest updated_at" in done.err


def test_a_marker_table_that_luigi_made_stays_as_it_is(place: Place) -> None:
    place.target.execute(
        "CREATE TABLE public.table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('luigi', 'raw.orders')",
    )
    before = place.target.execute("SELECT * FROM public.table_updates")
    assert adopt(place, "--from-target-max").code == DONE
    assert place.target.execute("SELECT * FROM public.table_updates") == before
    assert place.target.value("SELECT to_regclass('tidegate.table_updates') IS NULL")


def test_a_transformed_sync_is_adopted_by_its_key(make_project: MakeProject) -> None:
    project, place = make_project(
        databases=2,
        pipelines="import tidegate as tg\n"
        "@tg.sync(source='shop:public.orders', target='warehouse:raw.orders',"
        " cursor='updated_at')\n"
        "def orders(df):\n    return df.withColumn('double', df.total * 2)\n",
    )
    fill(place, "n <= 5")
    place.target.execute("ALTER TABLE raw.orders ADD double numeric(12,2)")
    found = project.adopt("orders", from_target_max=True)
    assert found.watermark == "2026-01-01 00:04:00+00"
    assert "checked when the transformation runs" in found.warnings[0]
    assert project.run("orders").rows == 6
    assert place.target.value("SELECT double FROM raw.orders WHERE id = 10") == 20


def test_a_transformed_sync_needs_the_index_as_well(make_place: MakePlace) -> None:
    place = make_place(
        databases=2,
        pipelines="import tidegate as tg\n"
        "@tg.sync(source='shop:public.orders', target='warehouse:raw.orders',"
        " cursor='updated_at')\n"
        "def orders(df):\n    return df\n",
    )
    fill(place, unique=False)
    with pytest.raises(UsageError, match='ADD UNIQUE \\("id"\\)'):
        place.open().adopt("orders", at=datetime(2026, 1, 1, tzinfo=UTC))


def test_odd_names_are_adopted_like_any_other(make_place: MakePlace) -> None:
    target = 'warehouse:"Raw %s"."Or""ders; --"'
    place = make_place({**ORDERS, "target": target, "cursor": 'Ge "ändert'}, databases=2)
    columns = 'id int PRIMARY KEY, "Ge ""ändert" date NOT NULL'
    place.source.execute(
        f"CREATE TABLE orders ({columns})",
        "INSERT INTO orders SELECT n, date '2026-01-01' + n FROM generate_series(1, 5) n",
    )
    place.target.execute(
        'CREATE SCHEMA "Raw %s"',
        f'CREATE TABLE "Raw %s"."Or""ders; --" ({columns})',
        'INSERT INTO "Raw %s"."Or""ders; --" VALUES (1, \'2026-01-02\'), (2, \'2026-01-03\')',
    )
    done = adopt(place, "--from-target-max", "--json")
    assert done.code == DONE, done
    assert (done.document["watermark"], done.document["rows_above"]) == ("2026-01-02", 4)
