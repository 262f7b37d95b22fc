"""`status` and `doctor` name whoever holds back vacuum in the control database."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from integration.commands import DONE, tidegate
from integration.conftest import Database, MakePlace, Place
from integration.holding import FIVE_MINUTES, look, pair, role, snapshot
from integration.orders import CREATE, FILL, ORDERS
from tidegate.insight.doctor import examine
from tidegate.model.check import Check, Level
from tidegate.model.vacuum_horizon import (
    MANY_DEAD_ROWS,
)
from tidegate.project import Project
from tidegate.settings import Settings, load_settings

__all__ = ["pair", "role"]


@pytest.fixture
def crowded(make_place: MakePlace) -> Place:
    """A project that ran once, with many dead rows in its job queue and nobody to blame."""
    place = make_place(ORDERS, worker={"horizon_warning": "1ms"})
    place.source.execute(*CREATE, FILL)
    with place.control.connect() as session:
        place.open().context.plane.migrate(session)
    queue = "tidegate_control.job_queue"
    place.control.execute(
        f"ALTER TABLE {queue} SET (autovacuum_enabled = off)",
        "ALTER TABLE tidegate_control.jobs SET (autovacuum_enabled = off)",
        "CREATE TABLE ids WITH (autovacuum_enabled = off) AS SELECT gen_random_uuid() AS job_id"
        f" FROM generate_series(1, {MANY_DEAD_ROWS + 1})",
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, resource, payload,"
        " submitted_by) SELECT job_id, 'shop', 'test', 'x', 'x', '{}', 'test' FROM ids",
        f"INSERT INTO {queue} (job_id, project, kind) SELECT job_id, 'shop', 'test' FROM ids",
        f"DELETE FROM {queue}",
        # What it did is told to others before it answers, not some time after it has gone.
        "SELECT pg_stat_force_next_flush()",
    )
    return place


def test_many_dead_rows_in_the_queue_are_told_with_what_they_wait_for(crowded: Place) -> None:
    control = crowded.control
    remark = look(control).queue_crowded
    assert remark is not None
    assert remark.found.startswith("the job queue has 10,001 dead rows and 0 live ones")
    vacuum = "VACUUM tidegate_control.job_queue"
    with snapshot(control) as session:
        held = look(control, FIVE_MINUTES).queue_crowded
        assert held is not None
        pid = session.info.backend_pid
        assert f"{remark.found}; process {pid} of postgres (report) from" in held.found
        assert held.fix == f"end it: SELECT pg_terminate_backend({pid}); then: {vacuum}"
        shown = tidegate(crowded.folder, "status")
        lines = [line for line in shown.out.splitlines() if line.startswith("control database:")]
        assert lines == [f"control database: {held.found}; {held.fix}"]
    assert look(control).queue_crowded == remark
    assert remark.fix.startswith(f"{vacuum}; ")
    control.execute(vacuum)
    after = look(control)
    assert after.queue_crowded is None
    assert after.queue is not None
    assert after.queue.dead == 0


def test_status_names_the_holder_in_one_line_and_only_when_it_is_late(
    make_place: MakePlace,
) -> None:
    patient = make_place(ORDERS)
    hasty = make_place(ORDERS, beside=patient, worker={"horizon_warning": "1ms"})
    patient.source.execute(*CREATE, FILL)
    with snapshot(patient.control) as session:
        pid = session.info.backend_pid
        quiet = tidegate(patient.folder, "status")
        warned = tidegate(hasty.folder, "status")
        document = tidegate(patient.folder, "status", "--json").document
        doctor = tidegate(hasty.folder, "doctor", "--json").document
    assert (quiet.code, warned.code) == (DONE, DONE)
    assert "control database" not in quiet.out
    lines = [line for line in warned.out.splitlines() if line.startswith("control database:")]
    assert len(lines) == 1
    assert f"process {pid} of postgres (report)" in lines[0]
    assert lines[0].endswith(f"; end it: SELECT pg_terminate_backend({pid})")
    assert document["vacuum_horizon"]["held"] is None
    assert pid in [one["pid"] for one in document["vacuum_horizon"]["holders"]]
    checks = {check["name"]: check for check in doctor["checks"]}
    assert checks["the control database: vacuum"]["level"] == "warn"
    assert str(pid) in checks["the control database: vacuum"]["fix"]


def test_status_without_its_control_database_still_has_the_object(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    place.source.execute(*CREATE, FILL)
    gone = make_conninfo(place.control.conninfo, port=1)
    environment = {"TIDEGATE_PROJECT__CONTROL": gone}
    document = tidegate(place.folder, "status", "--json", environment=environment).document
    assert document["control_unreachable"] is not None
    assert document["vacuum_horizon"]["holders"] == []


def test_doctor_tells_the_rows_of_the_queue(crowded: Place) -> None:
    def checks() -> dict[str, Check]:
        found = examine(crowded.folder, declared=lambda s: Project(s).syncs.values())
        return {check.name: check for check in found.checks}

    before = checks()["the control database: job queue"]
    assert (before.level, "10,001 dead rows" in before.found) == (Level.WARN, True)
    crowded.control.execute("VACUUM tidegate_control.job_queue")
    after = checks()
    assert after["the control database: job queue"].found == "0 dead rows, 0 live ones"
    assert after["the control database: job queue"].level is Level.OK


def test_doctor_says_what_to_grant_where_nothing_can_be_told(
    role: tuple[Database, str, str], make_place: MakePlace
) -> None:
    _, name, address = role
    place = make_place(ORDERS)
    place.source.execute(*CREATE)

    def load(root: Path) -> Settings:
        return load_settings(root, overrides={"project.control": address})

    found = examine(place.folder, load=load, declared=lambda s: Project(s).syncs.values())
    check = next(one for one in found.checks if one.name == "the control database: vacuum")
    assert (check.level, check.fix) == (Level.WARN, f'GRANT pg_read_all_stats TO "{name}"')
    assert "cannot be told" in check.found
