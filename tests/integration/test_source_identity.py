"""A source that is not what it was: another server, a backup that was put back, a failover."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import FAST
from integration.conftest import Database, MakePlace, Place
from integration.test_cdc_lost import promote
from integration.without_spark import Make, make, open_without_spark
from tidegate.errors import SourceReplaced
from tidegate.insight.status import SyncStatus, read_status
from tidegate.pipeline.plan import plan_project
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project

__all__ = ["make"]

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "id"}
SEEN = "SELECT value FROM tidegate_control.cursor_observations"
CREATE = "CREATE TABLE orders (id bigint PRIMARY KEY)"


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
    file = place.folder / "tidegate.toml"
    text = file.read_text()
    shop = next(line for line in text.splitlines() if line.startswith("shop = "))
    file.write_text(text.replace(shop, f'shop = "{source.conninfo}"'))
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
    refused(back, "is now database")
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


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path / "own", FAST)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(tmp_path)


def test_a_failover_is_followed_and_an_older_copy_is_not(
    make_place: MakePlace, own: EmbeddedServer, tmp_path: Path
) -> None:
    own.ensure_database("shop")
    source = Database(own.conninfo("shop"))
    made = make_place(databases=2)
    place = make_place(ORDERS, beside=Place(source, made.target, made.source, made.folder))
    source.execute(CREATE)
    add(source, 1, 5)
    data, backup = own.directory / "data", tmp_path / "backup"
    with open_without_spark(place) as project:
        project.run("orders")
        project.context.databases.close()
        promote(own)
        add(source, 6, 7)
        report = project.run("orders")
        assert report.rows == 2
        assert "timeline 1, now 2) and has all that was loaded" in report.outcome.notes[0]
        assert project.run("orders").outcome.notes == []

        project.context.databases.close()
        own.stop("fast")
        subprocess.run(["cp", "-a", str(data), str(backup)], check=True)
        own.start()
        add(source, 8, 900)
        project.run("orders")
        project.context.databases.close()
        own.stop("fast")
        shutil.rmtree(data)
        backup.rename(data)
        own.start()
        refused(project, "was restored to an earlier time", "of timeline 2")

        project.context.databases.close()
        promote(own)
        add(source, 8, 2000)
        hint = refused(project, "of timeline 3, which left the other at")
        assert "tidegate watermark rewind orders VALUE" in hint
        project.watermark("orders").rewind("5", reason="restored")
        assert project.run("orders").rows == 1995
        assert ids(place) == list(range(1, 2001))
        assert project.verify("orders").intact


def test_without_the_right_to_see_the_server_it_works_and_plan_says_so(
    make_place: MakePlace, own: EmbeddedServer
) -> None:
    own.ensure_database("shop")
    source = Database(own.conninfo("shop"))
    source.execute(
        CREATE,
        "CREATE ROLE plain LOGIN PASSWORD 'plain' IN ROLE pg_read_all_stats, pg_read_all_data",
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    )
    add(source, 1, 3)
    made = make_place(databases=2)
    plain = Database(f"host=127.0.0.1 port={own.port} user=plain password=plain dbname=shop")
    place = make_place(ORDERS, beside=Place(plain, made.target, made.source, made.folder))
    with open_without_spark(place) as project:
        plan = plan_project(project.context, [project.syncs["orders"]]).plans[0]
        assert any("GRANT EXECUTE ON FUNCTION pg_control_system()" in w for w in plan.warnings)
        assert project.run("orders").rows == 3
        # A failover: whether anything was lost is not told to this role.
        project.context.databases.close()
        promote(own)
        add(source, 4, 4)
        report = project.run("orders")
        assert "does not tell whether it has all" in report.outcome.notes[0]
        assert ids(place) == [1, 2, 3, 4]
