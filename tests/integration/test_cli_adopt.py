"""`tidegate adopt`: a filled table goes on from where its loader stopped, or is refused whole."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done
from integration.conftest import MakePlace, Place, open_without_spark
from integration.here import tidegate
from integration.left_behind import HIGHEST, NINTH, fill, filled_place, held, state
from integration.orders import ORDERS, contents
from tidegate.admin.adopt import examine_table, record_adoption
from tidegate.admin.adopted_table import StartingPoint
from tidegate.core.errors import FenceLost, UsageError
from tidegate.jobs.attempt import hold_table
from tidegate.jobs.job_records import JobRecords
from tidegate.verify.report import Verdict

PIPELINES = """
import tidegate as tg
@tg.sync(source='shop:public.orders', target='warehouse:raw.orders', cursor='updated_at')
def orders(df):
    return df.withColumn('double', df.total * 2)
"""


def adopt(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "adopt", "orders", *arguments)


def refused(place: Place, *arguments: str, code: int = USAGE) -> str:
    """The words of a refusal that wrote nothing."""
    before = contents(place.target)
    done = adopt(place, *arguments)
    assert done.code == code, done
    assert contents(place.target) == before
    return done.err


def would(place: Place, *arguments: str) -> tuple[str, int]:
    """Where it would begin, and how many rows of the source lie above that."""
    done = adopt(place, *arguments, "--dry-run", "--json")
    assert done.code == DONE, done
    return done.document["watermark"], done.document["rows_above"]


def keep(place: Place) -> None:
    """Put the filled table aside, to be restored from."""
    place.target.execute("ALTER SCHEMA raw RENAME TO kept")


def restore(place: Place, *, unique: bool = True) -> None:
    place.target.execute(
        "DROP SCHEMA IF EXISTS raw CASCADE",
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.orders (LIKE kept.orders {'INCLUDING ALL' if unique else ''})",
        "ALTER TABLE raw.orders ALTER id DROP NOT NULL" if not unique else "SELECT",
        "INSERT INTO raw.orders TABLE kept.orders",
    )


def test_the_next_run_loads_what_is_missing_of_the_last_tie_and_no_more(
    make_place: MakePlace,
) -> None:
    place = filled_place(make_place)
    words = refused(place)
    assert "holds 9 rows" in words
    assert f"the highest updated_at is {HIGHEST}" in words
    assert "the source has 0 rows above it" in words
    assert f"--from-target-max: from {NINTH} on, 3 rows" in words
    assert "--at VALUE" in words

    before = contents(place.source, place.target, place.control)
    dry = adopt(place, "--from-target-max", "--dry-run")
    assert dry.code == DONE
    assert "would adopt warehouse:raw.orders" in dry.out
    assert f"goes on after {NINTH}" in dry.out
    assert "tidegate run" not in dry.out
    assert contents(place.source, place.target, place.control) == before

    done = adopt(place, "--from-target-max")
    assert done.code == DONE, done
    assert "adopted warehouse:raw.orders with its 9 rows" in done.out
    assert f"goes on after {NINTH}; 3 rows of the source lie above" in done.out
    assert "tidegate verify orders" in done.out
    assert state(place) == [(NINTH, 1, 9, None)]

    project = open_without_spark(place)
    (move,) = project.watermark("orders").moves()
    assert (move.old, move.new, move.rows, move.version) == (None, NINTH, 9, 1)
    assert move.reason == f"adopted from the target's highest updated_at, {HIGHEST}"
    assert move.moved_by
    plane = project.context.plane
    with plane.connect() as control:
        last = JobRecords(plane).last_result(control, "shop", "sync", "orders")
    assert (last["adopted"], last["adopted_rows"], last["rows"]) == (True, 9, 0)
    for table in ("table_locks", "workers"):
        assert place.control.value(f"SELECT count(*) FROM tidegate_control.{table}") == 0, table
    status = tidegate(place.folder, "status", "--json").document["syncs"][0]
    assert (status["state"], status["rows_synced"], status["watermark"]) == ("adopted", 9, NINTH)

    words = refused(place, "--from-target-max")
    assert f"orders has a watermark already ({NINTH}, 9 rows)" in words
    for way in ("watermark set", "watermark rewind", "--full-refresh", "tidegate remove orders"):
        assert way in words
    other = make_place(ORDERS, beside=place, name="other")
    assert "is loaded by shop.orders" in refused(other, "--from-target-max")

    report = project.run("orders")
    assert (report.rows, report.outcome.changed, report.watermark) == (3, 1, HIGHEST)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 10
    assert project.verify("orders").verdict is Verdict.EQUAL


def test_an_adopted_table_that_is_emptied_later_is_noticed(make_place: MakePlace) -> None:
    place = filled_place(make_place)
    # A marker table that Luigi made stays as it is.
    place.target.execute(
        "CREATE TABLE public.table_updates (update_id text PRIMARY KEY, target_table text,"
        " inserted timestamp DEFAULT now())",
        "INSERT INTO table_updates VALUES ('luigi', 'raw.orders')",
    )
    before = place.target.execute("SELECT * FROM public.table_updates")
    assert adopt(place, "--from-target-max").code == DONE
    assert place.target.execute("SELECT * FROM public.table_updates") == before
    assert place.target.value("SELECT to_regclass('tidegate.table_updates') IS NULL")
    place.target.execute("TRUNCATE raw.orders")
    done = tidegate(place.folder, "plan", "orders")
    assert "raw.orders is empty, but 9 rows are recorded in it" in done.said


def test_where_it_begins(make_place: MakePlace) -> None:
    place = filled_place(make_place)
    keep(place)
    restore(place)
    most = "--from-target-max"
    assert would(place, "--at", "2026-01-01 00:05+00") == ("2026-01-01 00:05:00+00", 5)
    # Back begins lower but never higher.
    assert would(place, most, "--back", "5 minutes") == ("2026-01-01 00:03:00+00", 7)
    assert would(place, most, "--back", "1s") == (NINTH, 3)
    assert would(place, most, "--back", "1h") == ("2025-12-31 23:08:00+00", 10)

    # Above the horizon a value is refused, and the highest is capped.
    assert "lies above the horizon" in refused(place, "--at", "2099-01-01")
    place.target.execute(
        "UPDATE raw.orders SET updated_at = timestamptz '2099-01-01' + id * interval '1 day'"
        " WHERE id < 3"
    )
    done = adopt(place, most, "--dry-run", "--json")
    start = datetime.fromisoformat(done.document["watermark"])
    assert abs((datetime.now(UTC) - start).total_seconds()) < 60
    assert "lies above the source's horizon" in done.document["warnings"][0]
    assert "rows were deleted there, or its clock" in done.document["warnings"][1]

    # Where all rows share one value, it begins just below it.
    restore(place)
    place.target.execute("DELETE FROM raw.orders WHERE id <> 9")
    assert would(place, most) == ("2026-01-01 00:07:59.999999+00", 3)

    # An open transaction of the source bounds where it may begin.
    restore(place)
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
        bounded, _ = would(place, most)
        assert bounded < began[0]
        late.commit()
    above = f"SELECT count(*) FROM orders WHERE updated_at > '{bounded}'"
    assert place.source.value(above) == 3

    # Rows that a given value passes over are counted.
    restore(place)
    place.target.execute("DELETE FROM raw.orders WHERE id > 4")
    done = adopt(place, "--at", "2026-01-01 00:06+00")
    assert done.code == DONE
    assert "2 rows of the source lie between the target's highest updated_at" in done.err


def test_cursors_and_names_of_any_kind_are_adopted(make_place: MakePlace) -> None:
    whole = filled_place(make_place, "n <= 6", cursor="id")
    assert adopt(whole, "--from-target-max", "--back", "an hour").code == USAGE
    done = adopt(whole, "--from-target-max", "--back", "3", "--json")
    assert (done.document["watermark"], done.document["rows_above"]) == ("3", 7)
    assert open_without_spark(whole).run("orders").outcome.changed == 4

    target = 'warehouse:"Raw %s"."Or""ders; --"'
    place = make_place({**ORDERS, "target": target, "cursor": 'Ge "ändert'}, beside=whole)
    columns = 'id int PRIMARY KEY, "Ge ""ändert" date NOT NULL'
    place.source.execute(
        "DROP TABLE orders",
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


def test_a_transformed_sync_is_adopted_by_its_key(make_place: MakePlace) -> None:
    place = make_place(pipelines=PIPELINES)
    fill(place, "n <= 5", unique=False)
    with pytest.raises(UsageError, match='ADD UNIQUE \\("id"\\)'):
        place.open().adopt("orders", at=datetime(2026, 1, 1, tzinfo=UTC))
    place.target.execute("ALTER TABLE raw.orders ADD UNIQUE (id), ADD double numeric(12,2)")
    found = place.open().adopt("orders", from_target_max=True)
    assert found.watermark == "2026-01-01 00:04:00+00"
    assert "checked when the transformation runs" in found.warnings[0]


def test_what_cannot_be_gone_on_with_is_refused_with_all_that_is_wrong(
    make_place: MakePlace,
) -> None:
    place = filled_place(make_place, key="id")
    untouched = contents(place.source, place.control)
    most = "--from-target-max"
    for value in ("yesterday noon or so", "", "12"):
        assert "is not a timestamp with time zone" in refused(place, "--at", value)
    assert "infinity is no place" in refused(place, "--at", "infinity")
    assert "both given" in refused(place, "--at", "2026-01-01", most)
    alone = refused(place, "--at", "2026-01-01", "--back", "1h")
    assert "--back goes with --from-target-max" in alone
    assert "is not a duration" in refused(place, most, "--back", "soon")

    keep(place)
    for statements, words in (
        (["DROP TABLE raw.orders"], "it does not exist; tidegate run orders makes and fills it"),
        (["TRUNCATE raw.orders"], "it is empty; tidegate run orders fills it"),
        (
            [
                "ALTER TABLE raw.orders RENAME TO o",
                "CREATE VIEW raw.orders AS SELECT * FROM raw.o",
            ],
            "it is not a table",
        ),
        (
            ["ALTER TABLE raw.orders ALTER total TYPE int"],
            "its column total is integer, the rows have numeric(10,2)",
        ),
        (["ALTER TABLE raw.orders DROP COLUMN updated_at"], "it has no column updated_at"),
        (["UPDATE raw.orders SET updated_at = 'infinity' WHERE id = 1"], "infinity is no place"),
    ):
        restore(place)
        place.target.execute(*statements)
        assert words in refused(place, most), words

    restore(place, unique=False)
    place.target.execute(
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id <= 2",
        "INSERT INTO raw.orders SELECT * FROM raw.orders WHERE id = 1 LIMIT 1",
        "INSERT INTO raw.orders (id, updated_at) VALUES (NULL, now())",
        "ALTER TABLE raw.orders DROP COLUMN total",
    )
    words = refused(place, most)
    assert 'ALTER TABLE "raw"."orders" ADD COLUMN "total" numeric(10,2)' in words
    assert 'ALTER TABLE "raw"."orders" ADD UNIQUE ("id")' in words
    assert "2 keys (id) occur more than once, such as (1), 3 times" in words
    assert "delete the 3 rows too many" in words
    assert "1 of its rows have no value in the key (id)" in words

    restore(place, unique=False)
    place.target.execute(
        "ALTER TABLE raw.orders ADD UNIQUE (id), ALTER updated_at DROP NOT NULL",
        "INSERT INTO raw.orders (id, updated_at) VALUES (NULL, now())",
    )
    assert "1 of its rows have no value in the key (id)" in refused(place, most)

    restore(place)
    place.target.execute(
        "ALTER TABLE raw.orders ALTER updated_at DROP NOT NULL",
        "UPDATE raw.orders SET updated_at = NULL",
    )
    assert "no row of the target has a value in updated_at" in refused(place, most)
    assert "none tells its updated_at" in refused(place)
    assert would(place, "--at", "2026-01-01 00:05+00")[1] == 5

    assert contents(place.source, place.control) == untouched
    place.source.execute(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey", "INSERT INTO orders VALUES (4, 1)"
    )
    assert "is not unique: one occurs 2 times" in refused(place, "--at", "2026-01-01")


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
    assert would(place, "--from-target-max")[0] == NINTH


def test_a_column_of_another_type_is_not_taken_for_the_cursor(make_place: MakePlace) -> None:
    place = filled_place(make_place, cursor="made_on")
    place.source.execute("ALTER TABLE orders ADD made_on date NOT NULL DEFAULT '2026-01-01'")
    place.target.execute("ALTER TABLE raw.orders ADD made_on timestamp DEFAULT '2026-01-01'")
    words = refused(place, "--from-target-max")
    assert "the target has no column made_on of type date" in words
    assert adopt(place, "--at", "2025-12-31").code == DONE


def test_who_does_not_hold_the_table_records_nothing(make_place: MakePlace) -> None:
    place = filled_place(make_place)
    with held(place) as claim:
        done = adopt(place, "--from-target-max")
        assert done.code == BUSY
        assert str(claim.job_id) in done.err
        assert f"process {os.getpid()}" in done.err
    assert state(place) == []
    place.control.execute("DELETE FROM tidegate_control.jobs")

    project = place.open()
    sync, context = project.sync("orders"), project.context
    found = examine_table(context, sync, StartingPoint(from_target_max=True))
    request = {"kind": "sync", "name": "orders"}
    # Its attempt was replaced.
    with hold_table(context, sync.target, request, result={}, command="test") as hold:
        place.target.execute("UPDATE tidegate.fences SET token = token + 1")
        with pytest.raises(FenceLost):
            record_adoption(context, sync, found, hold.fence)
    assert state(place) == []
    # Somebody took the table since it was looked at.
    project.adopt("orders", at="2026-01-01")
    with (
        pytest.raises(UsageError, match="has a watermark already"),
        hold_table(context, sync.target, request, result={}, command="test") as hold,
    ):
        record_adoption(context, sync, found, hold.fence)
    assert state(place) == [("2026-01-01 00:00:00+00", 1, 9, None)]

    # Another control plane has it.
    assert tidegate(place.folder, "remove", "orders", "--yes").code == DONE
    foreign = uuid4()
    place.target.execute(f"INSERT INTO tidegate.fences VALUES ('raw.orders', '{foreign}', 9, 'x')")
    words = refused(place, "--from-target-max", code=FAILED)
    assert str(foreign) in words
    assert "tidegate adopt orders --take-over" in words
    assert adopt(place, "--from-target-max", "--take-over").code == DONE
