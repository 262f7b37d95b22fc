"""`tidegate adopt`: a filled table goes on from where its loader stopped, or is refused whole."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, MakeProject, Place
from integration.filled import HIGHEST, NINTH, ORDERS, fill, filled_place, state
from integration.orders import contents
from integration.test_cli_remove import held
from tidegate.control.jobs import Jobs
from tidegate.errors import FenceLost, UsageError
from tidegate.insight.adoption import examine, record_adoption
from tidegate.model.adoption import StartingPoint
from tidegate.runtime.hold import hold_table
from tidegate.spark.session import SparkSessions


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A source of ten orders, nine of which are in the target; the tenth ties with the last two."""
    return filled_place(make_place)


def adopt(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "adopt", "orders", *arguments)


def refused(place: Place, *arguments: str, code: int = USAGE) -> str:
    """The words of a refusal that wrote nothing anywhere."""
    before = contents(place.source, place.target, place.control)
    done = adopt(place, *arguments)
    assert done.code == code, done
    assert contents(place.source, place.target, place.control) == before
    return done.err


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
        last = Jobs(context.plane).last_result(control, "shop", "sync", "orders")
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


def test_a_table_with_duplicates_is_refused_with_all_that_is_wrong(make_place: MakePlace) -> None:
    place = filled_place(make_place, unique=False)
    place.target.execute(
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id <= 2",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 1 LIMIT 1",
        "INSERT INTO raw.orders (id) VALUES (NULL)",
        "ALTER TABLE raw.orders DROP COLUMN total",
    )
    words = refused(place, "--from-target-max")
    assert 'ALTER TABLE "raw"."orders" ADD COLUMN "total" numeric(10,2)' in words
    assert 'ALTER TABLE "raw"."orders" ADD UNIQUE ("id")' in words
    assert "2 keys (id) occur more than once, such as (1), 3 times" in words
    assert "delete the 3 rows too many" in words
    assert "1 of its rows have no value in the key (id)" in words


def test_what_the_refusal_says_about_duplicates_puts_them_right(make_place: MakePlace) -> None:
    place = filled_place(make_place, unique=False)
    place.target.execute(
        "INSERT INTO raw.orders VALUES (1, 99, '2026-01-01 00:06+00'), (2, 2, '2020-01-01')",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 3",
    )
    words = refused(place, "--from-target-max")
    statement = words.split("newest of each: ")[1].splitlines()[0]
    place.target.execute(statement, 'ALTER TABLE "raw"."orders" ADD UNIQUE ("id")')
    rows = place.target.execute("SELECT id, total::int FROM raw.orders WHERE id <= 3 ORDER BY id")
    assert rows == [(1, 99), (2, 2), (3, 3)]
    assert adopt(place, "--from-target-max").code == DONE


def test_null_keys_behind_a_unique_index_are_found(make_place: MakePlace) -> None:
    place = filled_place(make_place, unique=False)
    place.target.execute(
        "ALTER TABLE raw.orders ADD UNIQUE (id)", "INSERT INTO raw.orders (id) VALUES (NULL)"
    )
    assert "1 of its rows have no value in the key (id)" in refused(place, "--from-target-max")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE raw.orders", "it does not exist; tidegate run orders makes and fills it"),
        ("TRUNCATE raw.orders", "it is empty; tidegate run orders fills it"),
        (
            "ALTER TABLE raw.orders RENAME TO o; CREATE VIEW raw.orders AS SELECT * FROM raw.o",
            "it is not a table",
        ),
        (
            "ALTER TABLE raw.orders ALTER total TYPE int",
            "its column total is integer, the rows have numeric(10,2)",
        ),
        ("ALTER TABLE raw.orders DROP COLUMN updated_at", "it has no column updated_at"),
    ],
)
def test_a_target_that_cannot_be_gone_on_with_is_refused(
    place: Place, statement: str, words: str
) -> None:
    place.target.execute(*statement.split("; "))
    assert words in refused(place, "--from-target-max")


def test_a_source_whose_key_is_not_unique_is_refused(make_place: MakePlace) -> None:
    place = filled_place(make_place, key="id")
    place.source.execute(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "INSERT INTO orders VALUES (4, 1)"
    )
    assert "is not unique: (4) occurs 2 times" in refused(place, "--at", "2026-01-01")


def test_a_target_without_a_single_cursor_value_has_no_highest(make_place: MakePlace) -> None:
    place = filled_place(make_place)
    place.target.execute(
        "ALTER TABLE raw.orders ALTER updated_at DROP NOT NULL",
        "UPDATE raw.orders SET updated_at = NULL",
    )
    assert "no row of the target has a value in updated_at" in refused(place, "--from-target-max")
    assert "none tells its updated_at" in refused(place)
    assert adopt(place, "--at", "2026-01-01 00:05+00").code == DONE


def test_an_infinite_value_is_no_place_to_go_on_from(place: Place) -> None:
    assert "infinity is no place" in refused(place, "--at", "infinity")
    place.target.execute("UPDATE raw.orders SET updated_at = 'infinity' WHERE id = 1")
    assert "infinity is no place" in refused(place, "--from-target-max")


def test_a_column_of_another_type_is_not_taken_for_the_cursor(make_place: MakePlace) -> None:
    place = filled_place(make_place, cursor="made_on")
    place.source.execute("ALTER TABLE orders ADD made_on date NOT NULL DEFAULT '2026-01-01'")
    place.target.execute("ALTER TABLE raw.orders ADD made_on timestamptz DEFAULT '2026-01-01'")
    words = refused(place, "--from-target-max")
    assert "the target has no column made_on of type date" in words
    assert adopt(place, "--at", "2025-12-31").code == DONE


@pytest.mark.parametrize("value", ["yesterday noon or so", "", "12"])
def test_a_value_of_another_type_is_refused(place: Place, value: str) -> None:
    assert "is not a timestamp with time zone" in refused(place, "--at", value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--at", "2026-01-01", "--from-target-max"), "both given"),
        (("--at", "2026-01-01", "--back", "1h"), "--back goes with --from-target-max"),
        (("--from-target-max", "--back", "soon"), "is not a duration"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    place: Place, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(place, *arguments)


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


def test_a_sync_that_has_loaded_is_refused_with_the_ways_out(place: Place) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    words = refused(place, "--from-target-max")
    assert f"orders has a watermark already ({NINTH}, 9 rows)" in words
    for way in ("watermark set", "watermark rewind", "--full-refresh", "tidegate remove orders"):
        assert way in words
    assert tidegate(place.folder, "remove", "orders", "--yes").code == DONE
    assert adopt(place, "--from-target-max").code == DONE


def test_a_table_that_was_taken_since_it_was_looked_at_is_refused(place: Place) -> None:
    project = place.open()
    sync, context = project.sync("orders"), project.context
    found = examine(context, sync, StartingPoint(from_target_max=True))
    project.adopt("orders", at="2026-01-01")
    request = {"kind": "sync", "name": "orders"}
    with (
        pytest.raises(UsageError, match="has a watermark already"),
        hold_table(context, sync.target, request, result={}, command="test") as held_table,
    ):
        record_adoption(context, sync, found, held_table.fence)
    assert state(place) == [("2026-01-01 00:00:00+00", 1, 9, None)]


def test_an_attempt_that_was_replaced_records_nothing(place: Place) -> None:
    project = place.open()
    sync, context = project.sync("orders"), project.context
    found = examine(context, sync, StartingPoint(from_target_max=True))
    request = {"kind": "sync", "name": "orders"}
    with hold_table(context, sync.target, request, result={}, command="test") as held_table:
        place.target.execute("UPDATE tidegate.fences SET token = token + 1")
        with pytest.raises(FenceLost):
            record_adoption(context, sync, found, held_table.fence)
    assert state(place) == []


def test_a_table_that_another_sync_loads_is_refused_by_its_name(
    place: Place, make_place: MakePlace
) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    other = make_place(ORDERS, beside=place, name="other")
    assert "is loaded by shop.orders" in refused(other, "--from-target-max")


def test_a_table_of_another_control_plane_is_refused_until_taken_over(place: Place) -> None:
    assert adopt(place, "--from-target-max").code == DONE
    assert tidegate(place.folder, "remove", "orders", "--yes").code == DONE
    foreign = uuid4()
    place.target.execute(f"INSERT INTO tidegate.fences VALUES ('raw.orders', '{foreign}', 9, 'x')")
    words = refused(place, "--from-target-max", code=FAILED)
    assert str(foreign) in words
    assert "tidegate adopt orders --take-over" in words
    assert adopt(place, "--from-target-max", "--take-over").code == DONE


def test_while_a_run_holds_the_table_it_is_refused_with_the_holder(place: Place) -> None:
    with held(place) as claim:
        done = adopt(place, "--from-target-max")
        assert done.code == BUSY
        assert str(claim.job_id) in done.err
        assert f"process {os.getpid()}" in done.err
    assert state(place) == []


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
    place.target.execute("ALTER TABLE raw.orders DROP CONSTRAINT orders_pkey")


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
