"""A source that is not what it was: another server, a backup that was put back, a failover.

Whatever way a sync finds what changed, it notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conftest import FAST
from integration.cdc_places import (
    is_equal,
    leave_nothing,
    lost,
    orders_sync,
    place_on,
    refusals,
    rows,
)
from integration.conftest import Database, Make, MakePlace, Place, open_without_spark
from integration.standbys import copy_files, own_server, point_at, promote, put_back, standby_of
from tidegate.admin.metrics import measure_slots
from tidegate.admin.status import SyncStatus, read_status
from tidegate.core.errors import ChangesLost, SourceError, SourceReplaced, TidegateError
from tidegate.load.planner import plan_project
from tidegate.load.sources.cdc.slot_registry import quick_source, read_slots
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "id"}
SEEN = "SELECT value FROM tidegate_control.cursor_observations"
CREATE = "CREATE TABLE orders (id bigint PRIMARY KEY)"
BY_LOG = orders_sync(name="by_log", target="warehouse:raw.by_log")
BY_XID = {**BY_LOG, "name": "by_xid", "target": "warehouse:raw.by_xid", "changes": "snapshot"}


def add(database: Database, first: int, last: int) -> None:
    database.execute(f"INSERT INTO orders SELECT generate_series({first}, {last})")


def status_of(project: Project) -> SyncStatus:
    return read_status(project.context, [project.syncs["orders"]]).syncs[0]


def refused(project: Project, *said: str) -> str:
    """Run, plan, verify, repair, backfill and status all say it."""
    for action in (
        lambda: project.run("orders"),
        lambda: project.verify("orders", repair=True),
        lambda: project.backfill("orders", low="1", high="9"),
    ):
        with pytest.raises(SourceReplaced) as raised:
            action()
        assert all(part in str(raised.value) for part in said), raised.value
    found = plan_project(project.context, [project.syncs["orders"]]).refusals[0]
    for text in (found.message, status_of(project).problem or ""):
        assert all(part in text for part in said), text
    return found.hint or ""


def ids(place: Place) -> list[int]:
    return [one for (one,) in place.target.execute("SELECT id FROM raw.orders ORDER BY 1")]


def pointed_at(place: Place, source: Database) -> Project:
    point_at(place, source.conninfo)
    return open_without_spark(place)


def test_a_dump_that_was_restored_elsewhere_is_accepted_by_a_persons_word_only(
    make: Make, make_place: MakePlace
) -> None:
    project, place = make(ORDERS, databases=2)
    place.source.execute(CREATE)
    add(place.source, 1, 5)
    update_id = project.run("orders").loads[0].update_id
    # As an older Tidegate left it: nothing is known of the source, and it goes on.
    place.target.execute("UPDATE tidegate.etl_state SET declaration = declaration - 'server'")
    assert project.run("orders").found_nothing
    add(place.source, 6, 6)
    assert project.run("orders").rows == 1
    assert project.run("orders").outcome.notes == []

    elsewhere = make_place().source
    elsewhere.execute(CREATE)
    add(elsewhere, 1, 8)
    other = pointed_at(place, elsewhere)
    hint = refused(other, "is now database", "rows are loaded up to 6")
    assert "tidegate watermark set orders '6' --reason" in hint
    assert "tidegate run orders --full-refresh" in hint
    other.watermark("orders").set("6", reason="moved")
    assert other.run("orders").rows == 2
    # What was seen of the other's values says nothing of those that are open here.
    assert set(place.control.execute(SEEN)) == {("8",)}
    assert ids(place) == list(range(1, 9))

    back = pointed_at(place, place.source)
    with pytest.raises(SourceReplaced, match="is now database"):
        back.run("orders")
    assert back.run("orders", full_refresh=True).rows == 6
    assert back.run("orders").found_nothing
    assert ids(place) == list(range(1, 7))
    assert update_id.startswith("shop.orders-g0-v0-")


def test_a_horizon_below_the_watermark_is_said(make: Make) -> None:
    project, place = make(ORDERS, databases=2)
    place.source.execute(CREATE)
    add(place.source, 1, 5)
    project.run("orders")
    place.source.execute("DELETE FROM orders WHERE id > 3")
    words = "may be read up to 3 now, which lies below the watermark 5"
    assert words in project.run("orders").outcome.notes[0]
    assert words in plan_project(project.context, [project.syncs["orders"]]).plans[0].warnings[-1]
    assert words in status_of(project).notes[0]
    assert status_of(project).is_well


# --- servers of their own


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with own_server(tmp_path_factory.mktemp("own") / "postgres") as server:
        yield server


@pytest.fixture
def place(make_place: MakePlace, own: EmbeddedServer) -> Place:
    """A table with five rows in a database of its own, read in three ways."""
    name = f"shop_{uuid4().hex[:8]}"
    own.ensure_database(name)
    source = Database(own.conninfo(name))
    source.execute(CREATE)
    add(source, 1, 5)
    made = make_place(databases=2)
    beside = Place(source, made.target, made.source, made.folder)
    return make_place(ORDERS, BY_LOG, BY_XID, beside=beside)


def same(place: Place, table: str) -> bool:
    return rows(place.target, f"raw.{table}") == rows(place.source, "orders")


def test_a_failover_is_followed_and_an_older_copy_is_not(
    place: Place, own: EmbeddedServer, tmp_path: Path
) -> None:
    source = place.source
    timeline = source.value("SELECT timeline_id FROM pg_control_checkpoint()")
    with open_without_spark(place) as project:

        def run_all() -> None:
            for name in ("orders", "by_log", "by_xid"):
                project.run(name)
                assert same(place, name)

        run_all()
        project.context.databases.close()
        promote(own)
        add(source, 6, 7)
        report = project.run("orders")
        assert report.rows == 2
        told = f"timeline {timeline}, now {timeline + 1}) and has all that was loaded"
        assert told in report.outcome.notes[0]
        assert project.run("orders").outcome.notes == []
        assert project.run("by_log").loads
        with pytest.raises(SourceError, match=f"timeline {timeline}"):
            project.run("by_xid")
        # A person may say from which transaction on.
        first = source.value("SELECT min(xmin::text::bigint) FROM orders")
        project.watermark("by_xid").rewind(str(first), reason="failed over")
        assert project.run("by_xid").rows == 7

        project.context.databases.close()
        copy_files(own, tmp_path / "backup")
        add(source, 8, 900)
        run_all()
        project.context.databases.close()
        put_back(own, tmp_path / "backup")
        with pytest.raises(SourceReplaced, match="was restored to an earlier time"):
            project.run("orders")
        with pytest.raises(ChangesLost, match="it was restored from a backup"):
            project.run("by_log")
        with pytest.raises(SourceError, match="it was restored"):
            project.run("by_xid")

        # The same server as it was a while ago takes over: what it never had is loaded.
        project.context.databases.close()
        promote(own)
        add(source, 8, 2000)
        hint = refused(project, f"of timeline {timeline + 2}, which left the other at")
        assert "tidegate watermark rewind orders VALUE" in hint
        with pytest.raises(ChangesLost, match="restored, or another server took over"):
            project.run("by_log")
        with pytest.raises(SourceError, match="restored or failed over"):
            project.run("by_xid")
        project.watermark("orders").rewind("5", reason="restored")
        assert project.run("orders").rows == 1995
        assert project.verify("orders").intact
        for name in ("by_log", "by_xid"):
            project.run(name, full_refresh=True)
            assert same(place, name)
    leave_nothing(source)


def test_a_standby_is_refused_and_its_promotion_is_noticed(
    place: Place, own: EmbeddedServer, tmp_path: Path
) -> None:
    place.source.execute("ALTER TABLE orders ADD xid xid8 NOT NULL DEFAULT pg_current_xact_id()")
    with (place.folder / "tidegate.toml").open("a", encoding="utf-8") as file:
        file.write('[sync.by_id]\nsource = "shop:public.orders"\ntarget = "warehouse:raw.by_id"\n')
        file.write('cursor = "xid"\n')
    with open_without_spark(place) as project:
        project.run("by_xid")
    name = place.source.value("SELECT current_database()")
    with standby_of(own, tmp_path / "standby", {}) as standby:
        point_at(place, standby.conninfo(name))
        with open_without_spark(place) as moved:
            for sync in ("by_xid", "by_id", "by_log"):
                with pytest.raises(SourceError, match="is a standby") as raised:
                    moved.run(sync)
                assert "connect to the primary" in str(raised.value.hint)
            assert Database(standby.conninfo(name)).value("SELECT pg_promote()")
            with pytest.raises(SourceError, match="restored or failed over"):
                moved.run("by_xid")


def test_without_the_right_to_see_the_server_it_works_and_plan_says_so(
    place: Place, own: EmbeddedServer
) -> None:
    place.source.execute(
        "CREATE ROLE plain LOGIN PASSWORD 'plain' IN ROLE pg_read_all_stats, pg_read_all_data",
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    )
    name = place.source.value("SELECT current_database()")
    address = f"host=127.0.0.1 port={own.port} user=plain password=plain dbname={name}"
    point_at(place, address)
    with open_without_spark(place) as project:
        plan = plan_project(project.context, [project.syncs["orders"]]).plans[0]
        assert any("GRANT EXECUTE ON FUNCTION pg_control_system()" in w for w in plan.warnings)
        assert project.run("orders").rows == 5
        # A failover: whether anything was lost is not told to this role.
        project.context.databases.close()
        promote(own)
        add(place.source, 6, 6)
        report = project.run("orders")
        assert "does not tell whether it has all" in report.outcome.notes[0]
        assert ids(place) == [1, 2, 3, 4, 5, 6]

        # Nor may it make a slot, before it is allowed to.
        place.source.execute(
            "ALTER TABLE orders OWNER TO plain", f"GRANT CREATE ON DATABASE {name} TO plain"
        )
        with pytest.raises(TidegateError, match="may not make or read a slot") as raised:
            project.run("by_log")
        assert "ALTER ROLE plain REPLICATION" in (raised.value.hint or "")
        place.source.execute("ALTER ROLE plain REPLICATION")
        project.run("by_log")
        assert same(place, "by_log")
    leave_nothing(place.source)


def test_a_server_that_does_not_tell_its_changes(
    make_place: MakePlace, own: EmbeddedServer, server: EmbeddedServer
) -> None:
    """One after the other: settings, a slot that it gives up, another server, none at all."""
    place = place_on(make_place, own)
    source = place.source
    settings: dict[str, dict[str, str]] = {
        "wal_level is replica": {"wal_level": "replica"},
        "1 of max_replication_slots are free, and 2": {"max_replication_slots": "1"},
        "0 of max_wal_senders are free": {"max_wal_senders": "0"},
    }
    for said, values in settings.items():
        own.stop("fast")
        EmbeddedServer(own.directory, {**FAST, **values}).start()
        with open_without_spark(place) as project:
            assert said in refusals(project)[0]
            with pytest.raises(SourceError, match=said):
                project.run("orders")
        assert source.execute("SELECT FROM pg_publication") == []
    own.stop("fast")
    own.start()

    with open_without_spark(place) as project:
        project.run("orders")
        source.execute(
            "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
            "SELECT pg_reload_conf()",
            "SELECT pg_logical_emit_message(false, 'busy', repeat('x', 17 << 20), true)",
            "SELECT pg_switch_wal()",
            "SELECT pg_logical_emit_message(false, 'busy', repeat('x', 17 << 20), true)",
            "CHECKPOINT",
            "DELETE FROM orders WHERE id = 1",
        )
        lost(project, "has given up slot")
        source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
        project.run("orders", full_refresh=True)
        source.execute("DELETE FROM orders WHERE id = 2")
        assert project.run("orders").loads
        assert is_equal(place)

    other = make_place().source
    other.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(12, 2), note text)")
    point_at(place, other.conninfo)
    with open_without_spark(place) as moved:
        lost(moved, "whose log is another")
    point_at(place, source.conninfo)

    with open_without_spark(place) as project:
        own.stop("fast")
        with project.context.plane.connect() as control:
            found = read_slots(project.context, control, quick_source(project.context))
            metrics = {one.name: one for one in measure_slots(project.context, control)}
        assert "cannot connect" in (found[0].unreachable or "")
        assert not read_status(project.context, [project.syncs["orders"]]).is_well
        assert list(metrics["tidegate_slot_unreachable"].values.values()) == [True]
        assert metrics["tidegate_slot_retained_bytes"].values == {}
    own.start()
