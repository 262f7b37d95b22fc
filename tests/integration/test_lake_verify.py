"""`verify`, `verify --repair` and `why` of syncs into a lake: its rows at a snapshot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from integration.commands import DONE, FAILED
from integration.conftest import MakePlace, Place, Rows, WarmSpark
from integration.filled_lakes import make_shared, open_table, rows_of, table_of
from integration.here import tidegate
from integration.lakes import CREATE, FILL, change, make_lake_project
from tidegate.core.errors import DestinationError, TargetGone, UsageError
from tidegate.core.relation import Relation
from tidegate.iceberg.table import IcebergTable
from tidegate.project import Project
from tidegate.verify.report import ColumnDifference, RowDifference, RowReason, Verdict, Verification

__all__ = ["make_shared"]


def sync(name: str, **options: Any) -> dict[str, Any]:
    """A sync of the table of its name."""
    source, target = f"shop:public.{name}", f"lake:raw.{name}"
    return {"name": name, "source": source, "target": target, "cursor": "updated_at", **options}


SYNCS = [
    sync("damaged"),
    sync("explained", where="total < 1000", batch_rows=5),
    sync("typed"),
    sync("unrecorded"),
    sync("newest", key=["shop"], duplicates="newest"),
]
PIPELINES = """
import tidegate as tg


@tg.sync(source="shop:public.shaped", target="lake:raw.shaped", cursor="updated_at")
def shaped(df):
    return df.where("total > 2").selectExpr("id", "note", "total * 2 AS twice", "updated_at")
"""


class Shop:
    """One project, and the table of one of its syncs."""

    def __init__(self, project: Project, place: Place, name: str = "") -> None:
        self.project = project
        self.place = place
        self.name = name

    def of(self, name: str, *statements: str | sql.Composable) -> Shop:
        """The table of this name, made in the source."""
        made = Shop(self.project, self.place, name)
        made.source(*(statements or (CREATE, FILL)))
        return made

    def source(self, *statements: str | sql.Composable) -> Rows:
        """Statements over the table, which they call orders."""
        texts = [
            one.replace("orders", self.name) if isinstance(one, str) else one for one in statements
        ]
        return self.place.source.execute(*texts)

    def change(self, *statements: str) -> None:
        """Somebody else's statements over the table T of the lake."""
        table = f"lake.raw.{self.name}"
        change(self.project, *(re.sub(r"\bT\b", table, one) for one in statements))

    def run(self, **options: Any) -> Any:
        return self.project.run(self.name, **options)

    def verify(self) -> Verification:
        """Without a transformation Spark has no part in it."""
        project = self.place.open()
        found = project.verify(self.name)
        assert project.context.spark.started is False
        assert found.used_spark is False
        return found

    def why(self, key: int) -> Any:
        return self.project.why(self.name, id=key)

    @property
    def table(self) -> IcebergTable:
        return table_of(self.place, Relation("raw", self.name))

    def rows(self, *columns: str) -> Rows:
        return rows_of(open_table(self.place, Relation("raw", self.name)), *columns)

    def files(self) -> set[Path]:
        return set((self.place.folder / ".tidegate" / "lake").rglob("*.parquet"))


def difference(found: Verification) -> RowDifference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


@pytest.fixture(scope="module")
def shop(make_shared: MakePlace, warm_spark: WarmSpark) -> Shop:
    made = make_lake_project(make_shared, warm_spark, *SYNCS, databases=2, pipelines=PIPELINES)
    return Shop(*made)


def test_a_lake_is_compared_at_a_snapshot_and_its_damage_is_told_apart_and_repaired(
    shop: Shop,
) -> None:
    damaged = shop.of("damaged")
    assert damaged.verify().verdict is Verdict.NEVER_RAN
    damaged.run()
    clean = damaged.verify()
    told = (clean.verdict, clean.intact, clean.snapshot)
    assert told == (Verdict.EQUAL, True, damaged.table.main)
    assert (clean.source_rows, clean.target_rows, clean.not_yet_loaded) == (10, 10, 0)

    # What is above the watermark is left out on both sides.
    damaged.source(
        "UPDATE orders SET total = -1, updated_at = now() WHERE id <= 3",
        "INSERT INTO orders VALUES (11, 1)",
    )
    found = damaged.verify()
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 7, 4)
    damaged.run()
    assert damaged.verify().source_rows == 11

    damaged.change(
        "DELETE FROM T WHERE id IN (4, 5)",
        # A cursor above the source's, which the guard of a merge would keep.
        "UPDATE T SET total = 99.00, updated_at = timestamp '2026-01-01 09:00:00Z' WHERE id = 6",
        "INSERT INTO T VALUES (70, 1, NULL, timestamp '2026-01-01 00:00:00Z')",
    )
    found = damaged.verify()
    apart = difference(found)
    assert (apart.missing, apart.extra, apart.different, apart.complete) == (2, 1, 1, True)
    assert (apart.missing_keys, apart.extra_keys) == (("(4)", "(5)"), ("(70)",))
    assert apart.different_keys == ("(6)",)
    assert found.snapshot == damaged.table.main != clean.snapshot
    assert "somebody else has committed to it since the last load" in " ".join(found.notes)
    done = tidegate(shop.place.folder, "verify", "damaged")
    assert done.code == FAILED
    assert f"lake at snapshot {found.snapshot}" in done.out
    assert "2 missing, 1 extra, 1 different of 11 rows" in done.out
    done = tidegate(shop.place.folder, "verify", "damaged", "--json")
    assert done.document[0]["snapshot"] == found.snapshot

    damaged.source(
        "DELETE FROM orders WHERE id IN (7, 8)",
        "INSERT INTO orders VALUES (50, 50, 'late', '2026-01-01 00:05:30+00')",
        "UPDATE orders SET note = 'silent' WHERE id = 2",
    )
    before = shop.project.watermark("damaged").value
    found = shop.project.verify("damaged", repair=True)
    assert (found.verdict, found.repair is not None) == (Verdict.EQUAL, True)
    assert found.repair is not None
    was = found.repair.difference
    assert was is not None
    assert (was.missing, was.extra, was.different, found.repair.loads) == (3, 3, 2, 1)
    expected = damaged.source("SELECT id, total, note FROM orders ORDER BY id")
    assert damaged.rows("id", "total", "note") == expected
    assert shop.project.watermark("damaged").value == before
    damaged.source("INSERT INTO orders VALUES (60, 1, 'new')")
    assert damaged.run().rows == 1
    assert damaged.verify().verdict is Verdict.EQUAL

    # A new column that the lake has not followed, then a table that is gone.
    damaged.source("ALTER TABLE orders ADD COLUMN colour text")
    with pytest.raises(DestinationError, match="column colour is new"):
        damaged.verify()
    damaged.source("ALTER TABLE orders DROP COLUMN colour")
    damaged.change("DROP TABLE T")
    with pytest.raises(TargetGone, match=r"does not exist, but \d+ rows are recorded"):
        damaged.verify()


TYPES = {
    "small": ("smallint", "-7", "32767"),
    "large": ("bigint", "-9223372036854775808", "9223372036854775807"),
    "flag": ("boolean", "true", "false"),
    "single": ("real", "0.1", "'NaN'"),
    "double_": ("double precision", "1e-300", "'-Infinity'"),
    "exact": ("numeric(38,10)", "1234567890123456789012345678.0000000001", "-0.0000000001"),
    "free": ("numeric", "1.500", "'NaN'"),
    "fixed": ("char(6)", "'ab'", "' a'"),
    "words": ("text", "''", "E'quote \" comma , line\\n back\\\\ \\\\. ü€😀'"),
    "bytes": ("bytea", "''", "'\\x00ff22'"),
    "day": ("date", "'0044-03-15 BC'", "'9999-12-31'"),
    "moment": (
        "timestamptz",
        "'1582-10-04 23:59:59.999999+00'",
        "'0044-03-15 12:00:00.000001+00 BC'",
    ),
    "local": ("timestamp(3)", "'2999-12-31 23:59:59.999'", "'1900-01-01 00:00:00.001'"),
    "span": ("interval", "'1 mon 2 days 03:04:05.6'", "'-1 sec'"),
    "tree": ("jsonb", '\'{"b": 1, "a": [null]}\'', "'\"x\"'"),
    "ids": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "gen_random_uuid()"),
    "list": ("integer[]", "'{1,NULL,3}'", "'{}'"),
}
KEYS = {
    "k_padded": ("char(5)", "ab"),
    "k_exact": ("numeric(20,4)", "12.5"),
    "k_free": ("numeric", "12.50"),
    "k_day": ("date", "2026-02-03"),
    "k_moment": ("timestamptz", "2026-02-03 04:05:06.789012+02"),
    "k_local": ("timestamp", "2026-02-03 04:05:06.789012"),
    "k_ids": ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    "k_bytes": ("bytea", "\\x00ff"),
    "k_flag": ("boolean", "t"),
    "k_double": ("double precision", "0.1"),
    "k_words": ("text", "it''s a \"key\""),
}
EDITS = {
    "single": "CAST(0.10000001 AS float)",
    "exact": "exact + 0.0000000001",
    "words": "NULL",
    "bytes": "X'00'",
    "moment": "moment + INTERVAL '0.000001' SECOND",
    "fixed": "'ab    '",
}


def test_every_type_is_compared_exactly_and_found_as_part_of_a_key(shop: Shop) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    keys = ", ".join(f"{name} {kind} DEFAULT '{one}'" for name, (kind, one) in KEYS.items())
    typed = shop.of(
        "typed",
        f"CREATE TABLE orders (id int, code char(4), updated_at timestamptz NOT NULL, {columns},"
        f" {keys}, PRIMARY KEY (id, code, {', '.join(KEYS)}))",
        f"INSERT INTO orders VALUES"
        f" (1, 'a', '2026-01-01', {', '.join(t[1] for t in TYPES.values())}),"
        f" (2, 'b', '2026-01-02', {', '.join(t[2] for t in TYPES.values())}),"
        f" (3, 'c', '2026-01-03', {', '.join('NULL' for _ in TYPES)})",
        *(
            f"INSERT INTO orders SELECT {number}, 'd', '2026-01-03', {', '.join(TYPES)}"
            " FROM orders WHERE id = 1"
            for number in range(10, 10 + len(EDITS))
        ),
    )
    typed.run()
    found = typed.verify()
    assert (found.verdict, found.target_rows) == (Verdict.EQUAL, 3 + len(EDITS))
    # A key that is padded in the source and not in the lake is left out on both sides.
    typed.source("UPDATE orders SET small = 1, updated_at = '2026-01-03 1:00' WHERE id = 3")
    found = typed.verify()
    assert (found.verdict, found.not_yet_loaded) == (Verdict.EQUAL, 1)
    assert found.target_rows == 2 + len(EDITS)
    key = {name: value.replace("''", "'") for name, (_, value) in KEYS.items()}
    one = shop.project.explain("typed", {"id": 1, "code": "a", **key})
    assert (one.reason, one.differences, one.target_row is None) == (RowReason.EQUAL, (), False)
    other = shop.project.explain("typed", {"id": 1, "code": "a", **key, "k_double": "0.2"})
    assert other.reason is RowReason.UNKNOWN
    typed.change(
        *(
            f"UPDATE T SET {name} = {value} WHERE id = {number}"
            for number, (name, value) in enumerate(EDITS.items(), 10)
        ),
    )
    apart = difference(typed.verify())
    assert (apart.missing, apart.extra, apart.different) == (0, 0, len(EDITS))


def test_a_load_that_is_in_and_not_recorded_counts_as_loaded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    unrecorded = shop.of("unrecorded")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    unrecorded.run()
    unrecorded.source("INSERT INTO orders VALUES (11, 1, NULL, '2026-02-01')")
    with monkeypatch.context() as broken:
        broken.setattr("tidegate.load.targets.iceberg.publish.IcebergPublish._record", die)
        with pytest.raises(KeyboardInterrupt):
            unrecorded.run()
    found = unrecorded.verify()
    assert (found.verdict, found.source_rows) == (Verdict.EQUAL, 11)
    assert "is in and not recorded yet" in " ".join(found.notes)


def test_the_newest_row_of_a_key_is_the_one_that_spark_chose(shop: Shop) -> None:
    newest = shop.of(
        "newest",
        "CREATE TABLE orders (shop int, note text, n double precision, updated_at timestamptz"
        " NOT NULL)",
        # Of one moment, so that the content decides: capitals, accents, and what has no value.
        "INSERT INTO orders SELECT s, n, v, '2026-01-01'"
        " FROM generate_series(1, 5) AS s,"
        " (VALUES ('a', 1::float8), ('Z', 2), ('é', 1), ('é', 'NaN'), (NULL, 9)) AS x(n, v)",
    )
    newest.run()
    found = newest.verify()
    assert (found.verdict, found.source_rows) == (Verdict.EQUAL, 5)


@pytest.mark.chaos
def test_what_a_transformation_makes_now_is_compared_repaired_and_nothing_of_it_stays(
    shop: Shop,
) -> None:
    shaped = shop.of("shaped")
    project = shop.project
    shaped.run()
    files = shaped.files()
    assert shaped.why(5).reason is RowReason.LOADED
    assert shaped.why(1).reason is RowReason.MAYBE_TRANSFORMED
    dropped = project.explain("shaped", {"id": 1}, run_transform=True)
    assert dropped.reason is RowReason.TRANSFORMED
    shaped.source("INSERT INTO orders VALUES (11, 11)")
    found = project.verify("shaped")
    assert (found.verdict, found.used_spark) == (Verdict.EQUAL, True)
    told = (found.source_rows, found.not_yet_loaded, found.snapshot)
    assert told == (8, 1, shaped.table.main)
    assert shaped.files() == files
    shaped.change("DELETE FROM T WHERE id = 4", "UPDATE T SET twice = 1 WHERE id = 6")
    edited = project.explain("shaped", {"id": 6}, run_transform=True)
    assert edited.reason is RowReason.EDITED
    assert [one.column for one in edited.differences] == ["twice"]
    shaped.source(
        "UPDATE orders SET note = 'silent' WHERE id = 5",
        "UPDATE orders SET total = 1 WHERE id = 7",
        "DELETE FROM orders WHERE id = 8",
    )
    found = project.verify("shaped", repair=True)
    assert (found.verdict, found.used_spark) == (Verdict.EQUAL, True)
    assert found.repair is not None
    was = found.repair.difference
    assert was is not None
    assert (was.missing_keys, was.different_keys) == (("(4)",), ("(5)", "(6)"))
    assert was.extra_keys == ("(7)", "(8)")
    expected = shaped.source(
        "SELECT id, total * 2, note FROM orders WHERE total > 2 AND id < 11 ORDER BY id"
    )
    assert shaped.rows("id", "twice", "note") == expected


def test_every_reason_for_a_row_of_a_lake(shop: Shop) -> None:
    row = shop.of(
        "explained", CREATE, FILL, "INSERT INTO orders VALUES (12, 5000, 'x', '2026-01-01')"
    )
    never = row.why(1)
    assert (never.reason, never.snapshot) == (RowReason.NOT_YET, None)
    row.run()
    second, first, *_ = row.table.ancestors()

    cold = shop.place.open()
    found = cold.why("lake:raw.explained", id=7)
    assert cold.context.spark.started is False
    assert (found.reason, found.differences) == (RowReason.EQUAL, ())
    assert found.source_row == found.target_row == {
        "id": "7",
        "total": "7.00",
        "note": "note 7",
        "updated_at": "2026-01-01 00:07:00+00",
    }  # fmt: skip
    # The row lies in a file, the file came with a commit, and the commit names its load.
    assert found.carrier is not None
    assert (found.carrier.update_id, found.carrier.is_certain) == (second.update_id, True)
    assert found.snapshot == second.snapshot_id
    assert f"written in snapshot {second.snapshot_id}" in " ".join(found.notes)
    assert row.why(2).carrier.update_id == first.update_id

    row.source(
        "UPDATE orders SET total = 70, updated_at = now() WHERE id = 7",
        "UPDATE orders SET total = 80 WHERE id = 8",
        "INSERT INTO orders VALUES (20, 1, 'late', '2026-01-01 00:01:30+00')",
        "DELETE FROM orders WHERE id = 9",
    )
    changed = row.why(7)
    assert changed.reason is RowReason.CHANGED
    assert ColumnDifference("total", "70.00", "7.00") in changed.differences
    reasons = {
        8: RowReason.CHANGED_UNSEEN,
        20: RowReason.LATE,
        9: RowReason.DELETED,
        12: RowReason.FILTERED,
    }
    assert {key: row.why(key).reason for key in reasons} == reasons

    row.change(
        "UPDATE T SET note = 'edited' WHERE id = 3",
        "DELETE FROM T WHERE id = 4",
        "INSERT INTO T VALUES (50, 1, NULL, timestamp '2026-01-01 00:00:00Z')",
    )
    edited = row.why(3)
    assert (edited.reason, edited.carrier) == (RowReason.EDITED, None)
    assert edited.differences == (ColumnDifference("note", "note 3", "edited"),)
    removed = row.why(4)
    assert (removed.reason, removed.target_row) == (RowReason.LATE, None)
    assert f"last in snapshot {row.table.main}" in " ".join(removed.notes)
    stranger = row.why(50)
    assert (stranger.reason, stranger.source_row) == (RowReason.EDITED, None)
    # What others have written around it does not take the load's name from a row.
    assert row.why(2).carrier.update_id == first.update_id

    done = tidegate(shop.place.folder, "why", "lake:raw.explained", "id=3")
    assert done.code == DONE
    assert f"target (lake at snapshot {row.table.main}): id=3" in done.out
    done = tidegate(shop.place.folder, "why", "explained", "id=3", "--json")
    assert done.document["reason"] == "changed in the target"
    with pytest.raises(UsageError, match="'x' is not a integer"):
        shop.project.why("explained", id="x")

    row.change("DROP TABLE T")
    gone = row.why(2)
    assert gone.target_row is None
    assert "lake:raw.explained does not exist any more" in gone.notes
