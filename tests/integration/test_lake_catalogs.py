"""Lakes behind catalogs that know nothing of our fences: folders, JDBC, REST."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from conftest import MakeDatabase
from integration.conftest import Database, WarmSpark
from integration.destination_conformance import MergeConformance
from integration.destination_harness import MakeHarness, load
from integration.interleaving import Steps, stepwise
from integration.lake_harness import (
    Lake,
    LakeHarness,
    append_harness,
    make_lake,
    maker,
    shared,
    spelled_out,
)
from integration.rest_catalog import rest_server
from integration.test_lake_races import assert_in_once, first_attempt, next_attempt, race
from tidegate.config.sync import Mode, Rules
from tidegate.core.errors import FenceLost, LedgerBehind, SettingsError, TargetUnknown
from tidegate.core.relation import Relation
from tidegate.iceberg.metadata import list_tables, read_table
from tidegate.ledger.markers import Markers
from tidegate.postgres.embedded import EmbeddedServer

__all__ = ["shared", "stepwise"]

MISSING = Relation("raw", "missing")


@pytest.fixture
def hadoop(database: Database, tmp_path: Path, warm_spark: WarmSpark) -> Lake:
    warehouse = (tmp_path / "warehouse").as_uri()
    return make_lake(database, tmp_path, warm_spark, "hadoop", warehouse=warehouse)


@pytest.mark.usefixtures("stepwise")
def test_a_lake_of_folders_is_read_without_spark_and_loaded_as_any_other(
    hadoop: Lake, tmp_path: Path
) -> None:
    assert (list_tables(hadoop.catalog), read_table(hadoop.catalog, MISSING)) == ([], None)
    harness = LakeHarness(hadoop)
    load(harness, (1, "a", 1), (2, "b", 1), high=1, update_id="u1")
    assert load(harness, (1, "changed", 2), (3, "c", 2), high=2, update_id="u2").changed == 2
    assert harness.rows() == [(1, "changed", 2), (2, "b", 1), (3, "c", 2)]
    assert (harness.markers(), harness.watermark().value) == (["u1", "u2"], "2")
    assert list_tables(hadoop.catalog) == [harness.destination.relation]
    # A commit that its writer left without a hint counts.
    (hint,) = (tmp_path / "warehouse").glob("raw/*/metadata/version-hint.text")
    now = harness.read()
    for text in ("1", "", None):
        hint.write_text(text) if text is not None else hint.unlink()
        assert harness.read() == now
    assert isinstance(race(append_harness(hadoop), "intent.noted", "fence.raised"), FenceLost)
    with pytest.raises(SettingsError, match="needs the folder of its tables"):
        read_table(replace(hadoop.catalog, options={}), MISSING)


@pytest.mark.usefixtures("stepwise")
def test_whoever_takes_over_waits_for_main_to_be_moved_and_recorded(hadoop: Lake) -> None:
    """The fence row is held meanwhile, since the catalog itself does not look at it."""
    harness = append_harness(hadoop)
    first = Steps(first_attempt(harness, "u"), "branch.forwarded").start()
    assert (len(harness.rows()), harness.markers()) == (2, [])
    successor = Steps(lambda: next_attempt(harness, "u"), None)
    first.finish_soon()
    successor.start().finish()
    first.finish()
    assert (first.error, successor.error, successor.result) == (None, None, None)
    assert_in_once(harness, "u")


@pytest.fixture
def jdbc(
    database: Database, make_database: MakeDatabase, tmp_path: Path, warm_spark: WarmSpark
) -> Lake:
    """A catalog in somebody else's Postgres."""
    backend = Database(make_database("catalog"))
    backend.execute("CREATE SCHEMA iceberg")
    address = conninfo_to_dict(spelled_out(backend))
    options = {
        "uri": f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}"
        "?currentSchema=iceberg",
        "jdbc.user": str(address["user"]),
        "jdbc.password": str(address.get("password", "")),
        "jdbc.schema-version": "V1",
        "warehouse": (tmp_path / "theirs").as_uri(),
    }
    made = make_lake(database, tmp_path, warm_spark, "jdbc", **options)
    return replace(made, backend=backend, tables="iceberg.iceberg_tables")


def test_a_ledger_that_is_older_than_the_table_catches_up_or_stops(jdbc: Lake) -> None:
    """Somebody else's catalog is not restored with it, as ours is."""
    harness = append_harness(jdbc)
    load(harness, (1, "a", 1), (2, "b", 1), high=1, update_id="u1")
    load(harness, (3, "c", 2), high=2, update_id="u2")
    load(harness, (4, "d", 3), (5, "e", 3), high=3, update_id="u3")
    assert [row[0] for row in harness.rows()] == [1, 2, 3, 4, 5]
    assert list_tables(jdbc.catalog) == [harness.destination.relation]
    assert read_table(jdbc.catalog, MISSING) is None
    before = harness.watermark()
    # As a ledger that is restored from a backup taken after the first load.
    forget = (
        f"DELETE FROM {jdbc.schema}.table_updates WHERE update_id <> 'u1'",
        f"DELETE FROM {jdbc.schema}.watermark_log WHERE version > 1",
        f"UPDATE {jdbc.schema}.etl_state SET high_watermark = '1', version = 1, rows_synced = 2,"
        " update_id = 'u1', position = NULL",
    )
    jdbc.database.execute(*forget)
    fence = harness.attempt()
    harness.destination.heal(fence)
    after = harness.watermark()
    assert (after.value, after.version, after.rows_synced) == ("3", 3, 5)
    assert replace(after, updated_at=None) == replace(before, updated_at=None)
    assert harness.markers() == ["u1", "u2", "u3"]
    logged = jdbc.database.execute(
        f"SELECT version, new_watermark, rows, reason FROM {jdbc.schema}.watermark_log ORDER BY id"
    )
    assert logged[1:] == [(2, "2", 1, "load range"), (3, "3", 2, "load range")]

    # Where somebody has gone on from the backup, nobody can tell what follows what.
    jdbc.database.execute(*forget, f"UPDATE {jdbc.schema}.etl_state SET high_watermark = '1.5'")
    with pytest.raises(LedgerBehind, match="holds loads of orders up to 3") as stopped:
        harness.destination.heal(fence)
    assert "tidegate marker touch lake:raw." in str(stopped.value)
    with jdbc.open() as connection:
        Markers(jdbc.ledger()).touch(connection, "u3", harness.destination.relation)
    harness.destination.heal(fence)

    # One that knows of nothing at all cannot tell whether that is meant so.
    jdbc.database.execute(
        f"DELETE FROM {jdbc.schema}.table_updates", f"DELETE FROM {jdbc.schema}.etl_state"
    )
    harness.destination.heal(fence)
    with pytest.raises(TargetUnknown):
        harness.destination.prepare(harness.shape, harness.watermark(), Rules(mode=Mode.APPEND))

    mysql = replace(jdbc.catalog, options={"uri": "jdbc:mysql://host/db", "jdbc.password": "pw"})
    with pytest.raises(SettingsError, match="read in Postgres only") as refused:
        read_table(mysql, MISSING)
    assert "pw" not in str(refused.value)


@pytest.fixture(scope="module")
def rest(
    server: EmbeddedServer,
    shared: Database,
    warm_spark: WarmSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lake]:
    """A catalog behind Iceberg's own server, which keeps its tables in a database."""
    server.ensure_database("rest_backend")
    backend = Database(server.conninfo("rest_backend"))
    folder = tmp_path_factory.mktemp("rest")
    with rest_server(folder / "server", spelled_out(backend)) as url:
        made = make_lake(shared, folder, warm_spark, "rest", uri=url)
        yield replace(made, backend=backend, tables="public.iceberg_tables")


@pytest.mark.chaos
class TestMerge(MergeConformance):
    """merge keeps the contract."""

    @pytest.fixture
    def make_harness(self, rest: Lake) -> MakeHarness:
        return maker(rest, Mode.MERGE)


@pytest.mark.parametrize(
    ("at", "until"),
    [
        ("branch.created", "existed"),
        ("branch.staged", "branch.created"),
        ("intent.noted", "healed"),
        ("publish.committed", "intent.noted"),
    ],
)
@pytest.mark.chaos
@pytest.mark.usefixtures("stepwise")
def test_of_two_attempts_at_one_load_one_publishes(rest: Lake, at: str, until: str) -> None:
    race(append_harness(rest), at, until)
