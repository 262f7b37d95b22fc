"""The state of a project: written out, loaded elsewhere, and the same there."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from databases import Databases
from integration.job_store import RESOURCE, Store, open_store
from tidegate.admin.state import STATE_TABLES, ControlState, LoadedState
from tidegate.core.errors import BusyError, StateDamaged, UsageError
from tidegate.jobs.control_database import ControlDatabase
from tidegate.jobs.job import JobStatus, LockAt
from tidegate.postgres.embedded import EmbeddedServer

SCHEDULES = """
INSERT INTO schedules (project, name, kind, cron, timezone, catch_up, paused_at, paused_by,
                       seen_until)
VALUES"""
ODD = "a\tb\nc\rd\\e\\N\x01é€😀\"'{}%s"


@pytest.fixture(scope="module")
def stores(server: EmbeddedServer, kept_databases: Databases) -> Iterator[tuple[Store, Store]]:
    with open_store(server, kept_databases) as one, open_store(server, kept_databases) as two:
        yield one, two


@pytest.fixture
def here(stores: tuple[Store, Store]) -> Store:
    return cleaned(stores[0])


@pytest.fixture
def there(stores: tuple[Store, Store]) -> Store:
    return cleaned(stores[1])


def cleaned(store: Store) -> Store:
    store.clean()
    store.execute("ALTER SEQUENCE fence_tokens RESTART")
    return store


def dump(store: Store, project: str = "shop") -> bytes:
    with store.plane.connect() as session:
        return b"".join(ControlState(store.plane, project).dump(session))


def load(store: Store, data: bytes, project: str = "shop", **options: Any) -> LoadedState:
    state = ControlState(store.plane, project)
    with store.plane.connect() as session:
        return state.load(session, lambda: io.BytesIO(data), actor="test", **options)


def sections(data: bytes) -> Any:
    return json.loads(data)["sections"]


def names(store: Store) -> list[tuple[Any, ...]]:
    return store.execute("SELECT name, status FROM jobs ORDER BY job_id")


def test_unfinished_jobs_are_loaded_with_their_ids_and_everything_they_ask_for(
    here: Store, there: Store
) -> None:
    later = datetime(2030, 1, 1, tzinfo=UTC)
    first = here.submit(payload={"odd": ODD, "big": 10**30}, unique_key="u", priority=3)
    second = here.submit(name="later", visible_at=later, idempotency_key="i", max_attempts=9)
    loaded = load(there, dump(here))
    assert loaded.rows["jobs"] == 2
    for job_id in (first, second):
        (old,), (new,) = (
            one.execute(
                "SELECT to_jsonb(j), to_jsonb(q) FROM jobs j JOIN job_queue q USING (job_id)"
                " WHERE job_id = %s",
                job_id,
            )
            for one in (here, there)
        )
        assert new == old
    assert there.get(second).visible_at == later
    assert there.audit(first) == ["loaded"]


def test_a_running_job_is_pending_where_it_is_loaded_and_keeps_its_plan(
    here: Store, there: Store
) -> None:
    job_id = here.submit()
    claim = here.take_one()
    assert here.jobs.store_plan(here.session, claim, {"from": 1, "to": 2})
    load(there, dump(here))
    found = there.get(job_id)
    assert (found.status, found.plan, found.attempt_id) == (
        JobStatus.PENDING,
        {"from": 1, "to": 2},
        None,
    )
    again = there.take_one()
    assert (again.job_id, again.attempt_count) == (job_id, 2)


def test_tokens_and_locks_go_on_from_those_of_the_file(here: Store, there: Store) -> None:
    here.submit(lock_at=LockAt.SUBMIT)
    here.submit(lock_at=LockAt.CLAIM, resource="another")
    (*_, last) = here.take(limit=2)
    assert here.locked() == {RESOURCE, "another"}
    data = dump(here)
    load(there, data)
    assert there.locked() == {RESOURCE}
    assert there.take_one().fence > last.fence
    # They are never lowered.
    cleaned(there).execute("SELECT setval('fence_tokens', 1000)")
    load(there, data)
    assert there.take_one().fence > 1000


def test_what_has_ended_and_what_is_being_cancelled_is_left_out(here: Store, there: Store) -> None:
    here.submit(name="done")
    claim = here.take_one()
    assert here.finish(claim)
    here.submit(name="cancelled")
    held = here.take_one()
    here.execute("UPDATE job_queue SET attempt_id = NULL WHERE job_id = %s", held.job_id)
    here.execute("UPDATE jobs SET cancel_requested_at = now() WHERE job_id = %s", held.job_id)
    here.submit(name="waits")
    here.submit(name="of another", project="bank")
    load(there, dump(here))
    assert names(there) == [("waits", "pending")]


def test_a_file_that_cannot_be_loaded_changes_nothing(here: Store, there: Store) -> None:
    here.submit(lock_at=LockAt.SUBMIT)
    here.submit(name="second")
    data = dump(here)

    def refused(
        given: bytes, error: type[Exception], said: str | None = None, project: str = "shop"
    ) -> str:
        before = there.everything()
        with pytest.raises(error, match=said) as caught:
            load(there, given, project)
        assert there.everything() == before
        return str(getattr(caught.value, "hint", None))

    refused(data, UsageError, "state of project shop, this is bank", "bank")
    for damaged in (data[:-1], data[: len(data) // 2], data.replace(b"orders", b"0rders")):
        refused(damaged, StateDamaged)
    assert there.value("SELECT pg_sequence_last_value('fence_tokens')") is None
    there.plane.start_draining(there.session, "test")
    refused(data, BusyError)
    there.plane.stop_draining(there.session)
    there.submit(project="bank", lock_at=LockAt.SUBMIT)
    hint = refused(data, UsageError, "cannot be loaded beside what is")
    assert "nothing was changed" in hint
    cleaned(there).end(JobStatus.DONE, name="own")
    refused(data, UsageError, "has jobs in this control database")


def test_a_table_or_column_that_is_not_known_is_refused(here: Store, there: Store) -> None:
    here.submit()
    here.execute("ALTER TABLE schedules ADD COLUMN strange int")
    here.execute(
        f"{SCHEDULES} ('shop', 'a', 'sync', '* * * * *', 'UTC', 'none', NULL, NULL, now())"
    )
    try:
        data = dump(here)
    finally:
        here.execute("ALTER TABLE schedules DROP COLUMN strange")
    with pytest.raises(UsageError, match=r"schedules\.strange"):
        load(there, data)
    assert names(there) == []


def test_schedules_states_of_tasks_and_needs_come_with_the_jobs(here: Store, there: Store) -> None:
    first, second, done = here.submit(name="first"), here.submit(name="second"), here.submit()
    here.execute("UPDATE job_queue SET visible_at = 'infinity' WHERE job_id = %s", second)
    here.execute("UPDATE jobs SET status = 'done' WHERE job_id = %s", done)
    here.execute("DELETE FROM job_queue WHERE job_id = %s", done)
    for needs in (first, done):
        here.execute("INSERT INTO job_needs VALUES (%s, %s)", second, needs)
    here.execute(
        f"{SCHEDULES} ('shop', 'orders', 'sync', '0 * * * *', 'UTC', 'last', now(), 'ana',"
        " '2026-11-01'), ('bank', 'orders', 'sync', '* * * * *', 'UTC', 'none', NULL, NULL, now())"
    )
    here.execute(
        "INSERT INTO task_states (project, name, parameters_digest, failures, disabled_until,"
        " disabled_by) VALUES ('shop', 'revenue', 'd', ARRAY[now(), now()], 'infinity', 'failures')"
    )
    # Where it is loaded a scheduler has looked already, and does not know of the pause.
    there.execute(
        f"{SCHEDULES} ('shop', 'orders', 'sync', '9 * * * *', 'UTC', 'none', NULL, NULL, now())"
    )
    load(there, dump(here))
    for table in ("schedules", "task_states"):
        query = f"SELECT t::text FROM {table} t WHERE project = 'shop'"
        assert there.execute(query) == here.execute(query)
    assert there.execute("SELECT job_id, needs FROM job_needs") == [(second, first)]
    assert there.value("SELECT visible_at::text FROM job_queue WHERE job_id = %s", second) == (
        "infinity"
    )
    assert there.value("SELECT count(*) FROM schedules") == 1


def test_the_file_is_of_one_moment(here: Store, there: Store) -> None:
    here.submit(name="before")
    with here.plane.connect() as session:
        pieces = ControlState(here.plane, "shop").dump(session)
        first = next(pieces)
        here.submit(name="after")
        data = first + b"".join(pieces)
        assert session.info.transaction_status.name == "IDLE"
    load(there, data)
    assert names(there) == [("before", "pending")]


def test_only_an_unused_control_plane_goes_on_as_another(here: Store, there: Store) -> None:
    here.submit()
    data = dump(here)
    own = there.plane.identity(there.session)
    there.execute("SELECT nextval('fence_tokens')")
    with pytest.raises(UsageError, match="stays who it is"):
        load(there, data, take_over=True)
    assert (there.plane.identity(there.session), names(there)) == (own, [])
    there.execute("ALTER SEQUENCE fence_tokens RESTART")
    try:
        assert load(there, data, take_over=True).identity_taken
        assert there.plane.identity(there.session) == here.plane.identity(here.session)
    finally:
        there.execute("UPDATE control_plane SET control_id = %s", own)


JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["orders", "stock", "über"]),
            "payload": st.dictionaries(
                st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8),
                st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
                max_size=3,
            ),
            "priority": st.integers(-5, 5),
            "lock_at": st.sampled_from([LockAt.NEVER, LockAt.CLAIM]),
            "delay_seconds": st.floats(0, 1e6),
            "unique_key": st.none() | st.uuids().map(str),
            "retry_of": st.none() | st.uuids(),
        }
    ),
    max_size=6,
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(JOBS, st.integers(0, 4))
def test_what_is_dumped_loaded_and_dumped_again_is_the_same(
    stores: tuple[Store, Store], jobs: list[dict[str, Any]], claims: int
) -> None:
    here, there = cleaned(stores[0]), cleaned(stores[1])
    for one in jobs:
        here.submit(**one)
    if claims:
        here.take(limit=claims)
    here.execute(
        "INSERT INTO task_states (project, name, parameters_digest, failures, disabled_until)"
        " VALUES ('shop', 'revenue', %s, ARRAY[now()], now())",
        str(uuid4()),
    )
    first = dump(here)
    load(there, first)
    again = dump(there)
    assert sections(again) == sections(first)
    assert first.split(b"\n")[1:-3] == again.split(b"\n")[1:-3]
    assert json.loads(again)["fence_token"] >= json.loads(first)["fence_token"]


def test_a_control_plane_of_any_name_can_be_dumped(here: Store) -> None:
    assert all("%(project)s" in table.rows for table in STATE_TABLES)
    plane = ControlDatabase(here.plane.connect, 'odd "100%s')
    with plane.connect() as session:
        plane.migrate(session)
        try:
            state = ControlState(plane, "shop")
            data = b"".join(state.dump(session))
            assert state.load(session, lambda: io.BytesIO(data), actor="test").jobs == 0
        finally:
            session.execute('DROP SCHEMA "odd ""100%s" CASCADE')
