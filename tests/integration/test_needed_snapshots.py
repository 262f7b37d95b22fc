"""Snapshots that somebody still needs: for whom they are kept, told without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from integration.conftest import MakePlace, Place
from integration.filled_lakes import open_table
from integration.maintained import TARGET, maintain, order_of, small_files_place, snapshots
from tidegate.destinations.lake import LakeDestination
from tidegate.errors import BusyError, MaintenanceFailed
from tidegate.ledger.intents import Intent, Intents
from tidegate.model.maintenance import ExpireSnapshots
from tidegate.pipeline.needed_snapshots import Needed, bound_expiry
from tidegate.project import Project

READER = {"name": "copy", "source": "lake:raw.orders", "target": "warehouse:raw.copy", "key": "id"}
ALL = ExpireSnapshots(older_than_seconds=0)


def made_at(place: Place, snapshot_id: int) -> datetime:
    found = open_table(place).snapshot_by_id(snapshot_id)
    assert found is not None
    return datetime.fromtimestamp(found.timestamp_ms / 1000, UTC)


def bound(project: Project, options: ExpireSnapshots = ALL) -> Needed:
    project.context.control_id()
    destination = project.context.destination(TARGET)
    assert isinstance(destination, LakeDestination)
    return bound_expiry(project.context, destination, options, datetime.now(UTC))


def plan_load(place: Place, name: str, snapshot_id: int) -> None:
    """A job of this name has planned a load up to a snapshot, and has not ended."""
    place.control.execute(
        sql.SQL(
            "WITH job AS (INSERT INTO tidegate_control.jobs"
            " (job_id, project, kind, name, payload, plan, lock_at, submitted_by)"
            " VALUES (gen_random_uuid(), 'shop', 'sync', {}, '{{}}', {}, 'never', 'test')"
            " RETURNING job_id) INSERT INTO tidegate_control.job_queue (job_id, kind, project)"
            " SELECT job_id, 'sync', 'shop' FROM job"
        ).format(name, Jsonb({"batch": {"high": str(snapshot_id)}}))
    )


def test_where_nobody_needs_anything_all_is_forgotten_that_was_asked_for(
    make_place: MakePlace,
) -> None:
    project = small_files_place(make_place, 3, READER).open()
    found = bound(project, ExpireSnapshots(older_than_seconds=60))
    assert found.notes == ()
    assert abs(datetime.now(UTC) - timedelta(seconds=60) - found.older_than).total_seconds() < 30


def test_what_a_load_that_is_under_way_reads_is_kept(make_place: MakePlace) -> None:
    place = small_files_place(make_place, 4, READER)
    project = place.open()
    project.context.control_id()
    second = snapshots(place)[1]
    plan_load(place, "other", snapshots(place)[0])
    plan_load(place, "copy", second)
    found = bound(project)
    assert found.older_than == made_at(place, second)
    assert found.notes[0].endswith("on are kept: sync copy needs them")


def test_what_a_load_that_is_not_settled_names_is_kept_and_what_was_given_up_is_not(
    make_place: MakePlace,
) -> None:
    place = small_files_place(make_place, 4)
    project = place.open()
    ledger = project.context.ledger("lake")
    first, second, third, _ = snapshots(place)
    given_up = Intent("old", "a" * 32, 1, first, None, None)
    with ledger.connect() as connection:
        for intent in (given_up, Intent("new", "b" * 32, 2, second, third, None)):
            Intents(ledger).note(connection, "raw.orders", intent)
        Intents(ledger).abandon(connection, "raw.orders", given_up)
    found = bound(project)
    assert found.older_than == made_at(place, second)
    assert found.notes[0].endswith("on are kept: load new needs them")


def test_a_reader_whose_state_cannot_be_told_stops_the_forgetting(make_place: MakePlace) -> None:
    place = small_files_place(make_place, 2, READER)
    toml = place.folder / "tidegate.toml"
    text = toml.read_text().replace('"warehouse:raw.copy"', '"gone:raw.copy"')
    toml.write_text(f'{text}\n[connections.gone]\nurl = "postgresql://127.0.0.1:1/x"\n')
    done = maintain(place.open(), order_of(*list(order_of().actions)[:1]))
    assert done.status == "failed"
    assert 'connection "gone"' in done.actions[0].detail["error"]
    assert len(snapshots(place)) == 2


def test_a_table_that_cannot_be_healed_fails_the_job_and_promises_no_other_attempt(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_files_place(make_place, 1)

    def refuse(*_: object) -> None:
        raise BusyError("what an earlier attempt staged cannot be taken back", "run again")

    monkeypatch.setattr(LakeDestination, "heal", refuse)
    done = maintain(place.open(), order_of())
    assert isinstance(done.error, MaintenanceFailed)
    assert (done.status, done.actions) == ("failed", [])
    states = place.control.execute("SELECT status FROM tidegate_control.jobs")
    assert states == [("failed",)]
