"""`tidegate remove`: all that is recorded of a sync goes at once, or nothing does."""

from __future__ import annotations

import os
from uuid import uuid4

import pytest

from integration.commands import BUSY, DONE, FAILED, USAGE, Done
from integration.conftest import MakePlace, Place
from integration.here import answer_tidegate, tidegate
from integration.left_behind import ALL, NOTHING, held, loaded, recorded
from integration.orders import ORDERS
from tidegate.core.errors import FenceLost
from tidegate.core.identity import new_attempt_id, new_write_id, staging_table
from tidegate.jobs.job import JobRequest
from tidegate.jobs.job_records import JobRecords
from tidegate.jobs.queue import Jobs
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.ledger.fences import Fence, Fences
from tidegate.ledger.watermarks import Watermarks


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    """A project whose sync has loaded three rows in two loads."""
    made = make_place(ORDERS, databases=2)
    loaded(made)
    return made


def remove(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, "remove", *arguments)


def test_everything_of_a_sync_goes_and_its_table_stays(place: Place) -> None:
    context = place.open().context
    loaded(place, "items", "warehouse:raw.items")
    with place.target.connect() as session:
        place.open().marker("warehouse:raw.orders", update_id="my own").touch(session)
    assert recorded(place) == ALL

    # Nothing goes without a yes, and a name is only ever a name.
    refused = remove(place, "orders")
    assert refused.code == USAGE
    assert "add --yes" in refused.err
    assert "2 markers" in refused.out
    for answer in ("n", ""):
        asked = answer_tidegate(place.folder, answer, "remove", "orders")
        assert (asked.code, "nothing was removed" in asked.out) == (FAILED, True)
        assert "remove this? [y/N]" in asked.said
    for name in ("or'ders", 'x" OR 1=1 --', "orders; DROP SCHEMA tidegate", "%"):
        refused = remove(place, name, "--yes")
        assert refused.code == USAGE
        assert f"there is no sync {name}" in refused.err
    assert recorded(place) == ALL

    done = answer_tidegate(place.folder, "y", "remove", "orders")
    assert done.code == DONE
    assert "the watermark and its log of 2 moves" in done.out
    assert "2 markers" in done.out
    assert "the table raw.orders stays" in done.out
    assert "the next run loads it from the start" in done.out
    assert recorded(place) == NOTHING
    assert place.target.value("SELECT count(*) FROM raw.orders") == 3
    # Other syncs and other loads keep theirs.
    assert recorded(place, "items") == {**ALL, "fences": 0}
    assert place.target.value("SELECT count(*) FROM tidegate.fences WHERE resource = 'raw.items'")
    assert place.target.value("SELECT count(*) FROM tidegate.table_updates") == 3
    # It is in the history, and what the last run knew is gone.
    with context.plane.connect() as control:
        last = JobRecords(context.plane).last_result(control, "shop", "sync", "orders")
    assert (last["removed"], last["fingerprints"]) == (True, {})
    assert place.control.value("SELECT count(*) FROM tidegate_control.workers") == 0
    again = remove(place, "orders", "--yes")
    assert again.code == DONE
    assert "nothing is recorded of orders" in again.out


def test_the_table_goes_too_when_that_is_asked_for(make_place: MakePlace) -> None:
    target = 'warehouse:raw."Odd ""%s"" ; DROP TABLE x"'
    place = make_place({**ORDERS, "target": target})
    loaded(place, "orders", target)
    done = remove(place, "orders", "--drop-target", "--yes", "--json")
    assert done.code == DONE
    assert done.document["removed"] == [
        {
            "sync": "orders",
            "target": target,
            "watermarks": 1,
            "moves": 2,
            "markers": 2,
            "fences": 1,
            "dropped_target": True,
        }
    ]
    assert recorded(place) == NOTHING
    assert place.target.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'raw'") == 0


def test_whatever_stands_in_the_way_nothing_is_removed(place: Place) -> None:
    drop = ("orders", "--drop-target", "--yes")

    def nothing_went() -> bool:
        return {**recorded(place), "observations": 1} == ALL

    with held(place) as claim:
        refused = remove(place, *drop)
        assert refused.code == BUSY
        assert str(claim.job_id) in refused.err
        assert f"process {os.getpid()}" in refused.err
        assert recorded(place) == ALL
        assert place.target.value("SELECT count(*) FROM raw.orders") == 3
    place.control.execute("DELETE FROM tidegate_control.jobs")

    place.target.execute("CREATE VIEW raw.report AS SELECT * FROM raw.orders")
    refused = remove(place, *drop)
    assert refused.code == FAILED
    words = "raw.orders cannot be dropped: view raw.report depends on table raw.orders"
    assert words in refused.err
    assert "nothing was removed" in refused.err
    assert nothing_went()
    place.target.execute("DROP VIEW raw.report")

    # Nobody waits for ever.
    with place.target.connect() as session, session.transaction():
        session.execute("LOCK TABLE raw.orders IN ACCESS SHARE MODE")
        refused = remove(place, *drop)
    assert refused.code == BUSY
    assert "in use by another session" in refused.err
    assert nothing_went()

    place.target.execute(f"UPDATE tidegate.fences SET control_id = '{uuid4()}', token = 900")
    refused = remove(place, "orders", "--yes")
    assert refused.code == FAILED
    assert "loaded by another control plane" in refused.err
    assert "tidegate remove orders --take-over" in refused.err
    assert nothing_went()
    assert remove(place, "orders", "--yes", "--take-over").code == DONE
    assert recorded(place) == NOTHING


def test_a_dead_holder_is_no_obstacle_and_cannot_publish_any_more(place: Place) -> None:
    context = place.open().context
    with held(place, alive=False) as claim:
        fence = Fence("raw.orders", context.control_id(), claim.fence, claim.attempt_id)
        fences = Fences(context.ledger("warehouse"))
        fences.raise_(fence)
        assert remove(place, "orders", "--yes").code == DONE
        assert recorded(place) == NOTHING
        with place.target.connect() as session, pytest.raises(FenceLost):
            fences.lock(session, fence)
        with context.plane.connect() as control:
            assert Jobs(context.plane).holder(control, claim.resource) is None


def test_left_over_staging_goes_but_not_that_of_a_live_attempt(place: Place) -> None:
    context = place.open().context
    control_id = context.control_id()
    dead = staging_table(control_id, new_attempt_id(), new_write_id())
    foreign = staging_table(uuid4(), new_attempt_id(), new_write_id())
    jobs = Jobs(context.plane)
    with context.plane.connect() as control, context.plane.connect() as session:
        worker = WorkerIdentity.of_this_process()
        Workers(context.plane).register(session, worker, "test")
        job_id = jobs.submit(control, JobRequest("shop", "sync", "items", "another"), "test").job_id
        claim = jobs.claim(control, worker.worker_id, job_id, lease_seconds=600)
        assert claim is not None
        live = staging_table(control_id, claim.attempt_id, new_write_id())
        for name in (dead, foreign, live):
            place.target.execute(f"CREATE UNLOGGED TABLE tidegate.{name} (id int)")
        assert remove(place, "orders", "--yes").code == DONE
    left = place.target.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'stg%' AND relkind = 'r'"
    )
    assert {row[0] for row in left} == {foreign, live}


def test_a_table_that_another_sync_loads_too_is_neither_dropped_nor_unfenced(place: Place) -> None:
    loaded(place, "more")
    refused = remove(place, "orders", "--drop-target", "--yes")
    assert refused.code == USAGE
    assert "is also loaded by shop.more" in refused.err
    assert remove(place, "orders", "--yes").code == DONE
    assert recorded(place) == {**NOTHING, "fences": 1}
    assert recorded(place, "more") == ALL


def test_a_table_that_was_never_loaded_is_not_dropped(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    place.target.execute("CREATE SCHEMA raw", "CREATE TABLE raw.orders (id int)")
    done = remove(place, "orders", "--drop-target", "--yes")
    assert done.code == DONE
    assert "nothing is recorded" in done.out
    ledger = place.open().context.ledger("warehouse")
    ledger.ensure()
    with ledger.connect() as session:
        Watermarks(ledger).ensure(session, "shop.orders", "raw.orders", "date")
    refused = remove(place, "orders", "--drop-target", "--yes")
    assert refused.code == USAGE
    assert "no load of orders is in warehouse:raw.orders" in refused.err
    assert remove(place, "orders", "--yes").code == DONE
    assert place.target.value("SELECT to_regclass('raw.orders') IS NOT NULL")


def test_a_sync_that_is_not_declared_any_more_is_found_by_its_name(
    place: Place, make_place: MakePlace
) -> None:
    connections = {"gone": "host=127.0.0.1 port=1 user=x dbname=x", "unset": "${NOT_SET_ANYWHERE}"}
    refused = remove(make_place(beside=place, connections=connections), "orders", "--yes")
    assert refused.code == USAGE
    assert "gone could not be searched" in refused.err
    assert "unset could not be searched" in refused.err
    # Two names of one database are one place.
    connections |= {"a": place.target.conninfo, "b": place.target.conninfo}
    bare = make_place(beside=place, connections=connections)
    done = remove(bare, "orders", "--yes", "--json")
    assert done.code == DONE
    assert set(done.document["not_searched"]) == {"gone", "unset"}
    assert [one["target"] for one in done.document["removed"]] == ["a:raw.orders"]
    assert recorded(place) == NOTHING
    unknown = remove(bare, "orders", "--yes")
    assert unknown.code == USAGE
    assert "there is no sync orders" in unknown.err
