"""The phases as jobs: of a command, of workers, every five minutes; and what is told of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.commands import DONE, FAILED, USAGE, Done, tidegate
from integration.conftest import MakePlace, Place
from integration.event_places import generate, make_events
from integration.without_spark import NoSpark
from tidegate.control.jobs import Jobs
from tidegate.control.schedules import Schedules
from tidegate.control.workers import Worker, Workers
from tidegate.errors import BusyError, ControlMismatch, UsageError
from tidegate.insight.events import count_failed, read_status, retry_events
from tidegate.model.event_phase import Phase
from tidegate.model.identity import new_attempt_id
from tidegate.model.job import Claim, JobStatus
from tidegate.model.staging import new_write_id, staging_table
from tidegate.pipeline.events import find_events
from tidegate.project import Project
from tidegate.runtime.event_jobs import event_request
from tidegate.runtime.scheduler import Scheduling

JOBS = "SELECT name, status FROM tidegate_control.jobs ORDER BY job_id"


def opened(place: Place) -> Project:
    project = place.open()
    context = project.context
    context.spark = NoSpark(context.settings.spark, context.settings.state_directory, dict)
    return project


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_events(make_place, time_budget="20 s")


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with opened(place) as project:
        yield project


def test_the_phases_are_jobs_and_their_numbers_are_the_generators(
    place: Place, project: Project
) -> None:
    totals = generate(project, 1_000)
    report = project.run_events()
    done = report.processed
    assert done is not None
    assert (done.claimed, done.facts, done.duplicates, done.failed, done.left_pending) == (
        1_000,
        totals.facts,
        totals.duplicates,
        totals.malformed.total(),
        0,
    )
    assert [one.outcome for one in report.refreshed or ()] == ["refreshed"] * 4
    assert place.control.execute(JOBS) == [(f"events.{one}", "done") for one in Phase]
    kept = "SELECT result->>'facts' FROM tidegate_control.jobs WHERE name = 'events.process'"
    assert place.control.value(kept) == str(totals.facts)
    again = project.run_events()
    assert again.processed is not None
    assert again.processed.claimed == 0
    assert {one.outcome for one in again.refreshed or ()} == {"unchanged"}


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_works_by_itself_and_on_an_empty_database(
    project: Project, phase: Phase
) -> None:
    report = project.run_events(phase)
    given = (report.provisioned, report.processed, report.refreshed)
    assert [one is not None for one in given] == [one is phase for one in Phase]


def test_an_unknown_phase_is_refused_and_known_ones_keep_their_order(project: Project) -> None:
    with pytest.raises(UsageError, match="there is no phase 'load'"):
        project.run_events("load")
    seen: list[Phase] = []
    project.run_events("refresh", "provision", ended=lambda phase, _: seen.append(phase))
    assert seen == [Phase.PROVISION, Phase.REFRESH]


def test_what_a_dead_instance_staged_is_swept(place: Place, project: Project) -> None:
    project.run_events("provision")
    control_id = project.context.control_id()
    table = staging_table(control_id, new_attempt_id(), new_write_id())
    left = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'stg\\_%'"
    for sweep in (lambda: project.run_events("process"), lambda: _tidy(project)):
        place.target.execute(f"CREATE UNLOGGED TABLE tidegate.{table} (id int)")
        assert place.target.value(left) == 1
        sweep()
        assert place.target.value(left) == 0


def _tidy(project: Project) -> None:
    with project.context.plane.connect() as control:
        project.sweeper("test").run_once(control, tidy=True)


def test_a_month_that_comes_between_the_phases_is_made_at_once(
    place: Place, project: Project
) -> None:
    project.run_events("provision")
    totals = generate(project, 300, malformed=0.0)
    report = project.run_events("process")
    assert report.processed is not None
    assert report.processed.left_pending == 0
    assert place.target.value("SELECT count(*) FROM warehouse.fact_events") == totals.facts


def test_a_view_that_fails_is_told_after_everything_else_was_done(
    place: Place, project: Project
) -> None:
    totals = generate(project, 200)
    (place.folder / "views" / "mv_revenue_summary.sql").write_text("SELECT 1 / 0 AS account_id")
    report = project.run_events()
    assert report.error is not None
    assert "1 of 4 views could not be refreshed: analytics.mv_revenue" in report.error.message
    assert report.exit_code == FAILED
    assert [one.outcome for one in report.refreshed or ()].count("refreshed") == 3
    assert place.target.value("SELECT count(*) FROM warehouse.fact_events") == totals.facts
    assert place.control.execute(JOBS)[-1] == ("events.refresh", "failed")


def hold(project: Project, phase: Phase) -> tuple[Claim, Any]:
    """Another process that has a phase; it is there for as long as its session is."""
    context = project.context
    context.control_id()
    session = context.plane.connect()
    worker = Worker.of_this_process(project.name, "another")
    Workers(context.plane).register(session, worker, "test")
    command = {"command": f"tidegate event run --phase {phase}"}
    request = event_request(context, find_events(context), phase, payload=command)
    submitted = Jobs(context.plane).submit(session, request, "another")
    assert submitted.job_id is not None
    claim = Jobs(context.plane).claim(
        session, worker.worker_id, submitted.job_id, lease_seconds=600
    )
    assert claim is not None
    return claim, session


@pytest.mark.parametrize("phase", [Phase.PROVISION, Phase.REFRESH])
def test_a_phase_that_another_has_is_waited_for(
    place: Place, project: Project, phase: Phase
) -> None:
    project.run_events()
    claim, session = hold(project, phase)
    reports: list[object] = []
    thread = threading.Thread(target=lambda: reports.append(project.run_events(phase)))
    thread.start()
    thread.join(1.0)
    assert thread.is_alive()
    Jobs(project.context.plane).finish(session, claim, JobStatus.DONE, actor="another")
    thread.join(20)
    session.close()
    assert len(reports) == 1


def test_it_is_not_waited_for_ever(make_place: MakePlace) -> None:
    place = make_events(make_place, time_budget="1 s")
    with opened(place) as project:
        _, session = hold(project, Phase.REFRESH)
        with pytest.raises(BusyError, match="held by"):
            project.run_events("refresh")
        session.close()


def test_what_a_dead_process_had_is_taken_over_at_once(place: Place, project: Project) -> None:
    for phase in Phase:
        _, session = hold(project, phase)
        session.close()
    report = project.run_events()
    assert report.refreshed is not None
    left = "SELECT count(*) FROM tidegate_control.jobs WHERE status = 'running'"
    assert place.control.value(left) == 0


def test_events_of_another_control_plane_are_taken_over_only_when_told(
    make_place: MakePlace, place: Place, project: Project
) -> None:
    project.run_events()
    other = make_events(make_place, time_budget="5 s")
    text = (other.folder / "tidegate.toml").read_text()
    text = text.replace(
        f'warehouse = "{other.target.conninfo}"', f'warehouse = "{place.target.conninfo}"'
    )
    (other.folder / "tidegate.toml").write_text(text)
    with opened(other) as second:
        with pytest.raises(ControlMismatch) as caught:
            second.run_events()
        assert "tidegate event run --take-over" in str(caught.value.hint)
        assert second.run_events(take_over=True).refreshed is not None


def test_a_tick_queues_the_three_phases_once_and_a_worker_does_them_in_order(
    place: Place, project: Project
) -> None:
    totals = generate(project, 200)
    project.context.control_id()
    assert [one.name for one in project.scheduled] == ["events.run"]
    scheduler = project.scheduler("test")
    with project.context.plane.connect() as control:
        clock = Schedules(project.context.plane, project.name).clock(control)
        assert scheduler.run_once(control, clock) == Scheduling()
        five = timedelta(minutes=5)
        assert scheduler.run_once(control, clock + five).queued == 1
        assert scheduler.run_once(control, clock + five) == Scheduling()
        # The jobs of the last tick have not ended: nothing is queued twice.
        assert scheduler.run_once(control, clock + 2 * five).coalesced == 1
    assert place.control.execute(JOBS) == [(f"events.{one}", "pending") for one in Phase]
    project.worker(burst=True, concurrency=3).run()
    assert place.control.execute(JOBS) == [(f"events.{one}", "done") for one in Phase]
    ended = "SELECT name FROM tidegate_control.jobs ORDER BY finished_at"
    assert [row[0] for row in place.control.execute(ended)] == [f"events.{one}" for one in Phase]
    assert place.target.value("SELECT count(*) FROM warehouse.fact_events") == totals.facts


def test_without_a_schedule_nothing_is_queued_and_a_bad_one_is_refused(
    make_place: MakePlace,
) -> None:
    place = make_events(make_place)
    path = place.folder / "tidegate.toml"
    text = path.read_text()
    path.write_text(text.replace("[events]\n", '[events]\nschedule = "every day"\n'))
    done = tidegate(place.folder, "event", "status")
    assert done.code == USAGE
    assert 'schedule is "every day"; expected five fields' in done.err


def test_the_status_tells_what_waits_why_events_failed_and_how_views_stand(
    place: Place, project: Project
) -> None:
    before = read_status(project.context)
    assert not before.is_provisioned
    totals = generate(project, 500)
    project.run_events("provision")
    waiting = read_status(project.context)
    assert (waiting.pending, waiting.failed, waiting.last_hour.batches) == (500, 0, 0)
    assert waiting.lag_seconds is not None
    assert waiting.lag_seconds > 0
    project.run_events("process")
    found = read_status(project.context)
    assert (found.pending, found.failed) == (0, totals.malformed.total())
    assert sum(one.events for one in found.reasons) == found.failed
    assert found.last_hour.facts == totals.facts
    assert found.last_hour.done == totals.facts + totals.duplicates
    assert found.last_hour.per_second is not None
    assert [one.is_current for one in found.views] == [False] * 4
    project.run_events("refresh")
    assert [one.is_current for one in read_status(project.context).views] == [True] * 4
    assert found.partitions >= 3


def test_failed_events_are_tried_again_by_reason_id_or_all(place: Place, project: Project) -> None:
    totals = generate(project, 500)
    project.run_events("provision", "process")
    failed = totals.malformed.total()
    context = project.context
    deep = totals.malformed["deep"]
    assert count_failed(context, reason="nested deeper") == deep > 0
    assert retry_events(context, reason="nested deeper") == deep
    one = read_status(context).reasons[0].example
    assert retry_events(context, ids=[one]) == 1
    assert read_status(context).pending == deep + 1
    assert retry_events(context) == failed - deep - 1
    assert retry_events(context) == 0
    report = project.run_events("process").processed
    assert report is not None
    assert (report.claimed, report.failed, report.facts) == (failed, failed, 0)


def test_events_that_fail_again_at_once_are_retried_once(place: Place, project: Project) -> None:
    generate(project, 100)
    project.run_events("provision", "process")
    failed = read_status(project.context).failed
    place.target.execute(
        "CREATE FUNCTION fail_again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " NEW.status := 'failed'; NEW.processed_at := clock_timestamp(); RETURN NEW; END $$",
        "CREATE TRIGGER fail_again BEFORE UPDATE ON raw_events"
        " FOR EACH ROW EXECUTE FUNCTION fail_again()",
    )
    counts: list[int] = []
    thread = threading.Thread(
        target=lambda: counts.append(retry_events(project.context)), daemon=True
    )
    thread.start()
    thread.join(20)
    assert counts == [failed]


def test_a_corrected_model_takes_what_failed_before(place: Place, project: Project) -> None:
    model = place.folder / "events.toml"
    text = model.read_text()
    assert "session_id = { max_length = 200 }" in text
    model.write_text(
        text.replace("session_id = { max_length = 200 }", "session_id = { max_length = 2 }")
    )
    totals = generate(project, 300)
    first = project.run_events().processed
    assert first is not None
    assert first.failed > totals.malformed.total()
    model.write_text(text)
    assert tidegate(place.folder, "event", "retry", "--reason", "session_id is").code == DONE
    project.run_events()
    assert place.target.value("SELECT count(*) FROM warehouse.fact_events") == totals.facts
    failed = "SELECT count(*) FROM raw_events WHERE status = 'failed'"
    assert place.target.value(failed) == totals.malformed.total()


def run(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, *arguments)


def test_the_commands_print_lines_and_documents(place: Place, project: Project) -> None:
    totals = generate(project, 100)
    done = run(place, "event", "run")
    assert done.code == DONE, done.err
    assert f"{totals.facts:,} facts, {totals.duplicates:,} duplicates" in done.out
    assert "refresh: analytics.mv_revenue_summary refreshed" in done.out
    document = run(place, "event", "run", "--json").document
    assert document["processed"]["claimed"] == 0
    assert set(document["jobs"]) == {"provision", "process", "refresh"}
    only = run(place, "event", "run", "--phase", "process", "--json").document
    assert only["provisioned"] is None
    status = run(place, "event", "status", "--json").document
    assert status["failed"] == totals.malformed.total()
    said = run(place, "event", "status").out
    assert "nothing waits" in said
    line = f"events: 0 waiting, {status['failed']} failed, views up to date; see: tidegate event"
    assert line in run(place, "status").out
    assert "why events failed" in said
    dry = run(place, "event", "retry", "--all", "--dry-run")
    assert f"{status['failed']} failed events would wait again" in dry.out
    assert run(place, "event", "retry", "--all", "--json").document["retried"] == status["failed"]
    assert run(place, "event", "run", "--budget", "soon").code == USAGE
    assert run(place, "event", "retry").code == USAGE
    assert run(place, "event", "retry", "not-an-id").code == USAGE
    assert run(place, "event", "retry", "--all", "--reason", "x").code == USAGE


@pytest.mark.parametrize("arguments", [["run"], ["status"], ["retry", "--all"]])
def test_a_project_without_events_says_how_to_begin_one(
    make_place: MakePlace, arguments: list[str]
) -> None:
    done = tidegate(make_place().folder, "event", *arguments)
    assert done.code == USAGE
    assert "tidegate init --template events" in done.err


def test_events_in_a_lake_are_refused(make_place: MakePlace) -> None:
    place = make_events(make_place)
    path = Path(place.folder / "tidegate.toml")
    text = path.read_text().replace(
        "[connections]\n", '[connections]\nlake = { type = "iceberg" }\n'
    )
    path.write_text(text.replace('connection = "warehouse"', 'connection = "lake"'))
    with place.open() as project, pytest.raises(UsageError, match="which is a lake"):
        project.run_events()


def test_plan_says_what_events_become_and_what_a_run_would_make(
    place: Place, project: Project
) -> None:
    before = run(place, "plan", "--json").document["events"]
    assert {"public.raw_events", "warehouse.fact_events"} <= set(before["missing"])
    assert place.target.value("SELECT to_regclass('public.raw_events') IS NULL")
    project.run_events()
    generate(project, 100, malformed=0.0)
    (place.folder / "views" / "mv_revenue_summary.sql").write_text("SELECT no_such FROM nothing")
    done = run(place, "plan")
    assert done.code == DONE, done.err
    assert "100 events waiting" in done.out
    assert "warning    view analytics.mv_revenue_summary: relation" in done.out
    found = run(place, "plan", "--json").document["events"]
    assert found["missing"] == []
    assert len(found["months"]) >= 2
    assert "occurred_at" in found["hashed"]


def test_plan_and_doctor_refuse_a_model_whose_hash_lacks_the_partition_column(
    place: Place,
) -> None:
    model = place.folder / "events.toml"
    text = model.read_text()
    model.write_text(text.replace('hashed = ["occurred_at", ', "hashed = ["))
    done = run(place, "plan")
    assert done.code == USAGE
    assert "occurred_at" in done.err
    examined = run(place, "doctor", "--json").document
    (check,) = [one for one in examined["checks"] if one["name"] == "events"]
    assert check["level"] == "fail"
    assert "occurred_at" in check["found"]


def test_doctor_tells_of_views_that_fail_and_events_that_wait_too_long(
    place: Place, project: Project
) -> None:
    def events() -> list[tuple[str, str]]:
        checks = run(place, "doctor", "--json").document["checks"]
        return [(one["level"], one["found"]) for one in checks if one["name"] == "events"]

    assert events() == [("ok", "the model is valid; the first tidegate event run makes the tables")]
    generate(project, 50)
    project.run_events()
    assert events()[0][0] == "ok"
    place.target.execute(
        "INSERT INTO raw_events (id, body, received_at)"
        " VALUES (gen_random_uuid(), '{}', now() - interval '5 hours')",
        "UPDATE analytics.mv_refresh_log SET error = 'no' WHERE mv_name LIKE '%revenue%'",
    )
    assert [level for level, _ in events()] == ["warn", "warn"]
    place.target.execute("ALTER TABLE warehouse.fact_events ALTER properties TYPE json")
    ((level, found),) = events()
    assert level == "fail"
    assert "warehouse.fact_events.properties is json;" in found


def test_uninstall_takes_the_ledger_of_events_and_leaves_their_tables(
    place: Place, project: Project
) -> None:
    totals = generate(project, 50)
    project.run_events()
    project.close()
    done = run(place, "db", "uninstall", "--yes")
    assert done.code == DONE, done.err
    assert place.target.value("SELECT to_regnamespace('tidegate') IS NULL"), done.out
    assert place.target.value("SELECT count(*) FROM warehouse.fact_events") == totals.facts
    # What is left is taken up again.
    with opened(place) as again:
        report = again.run_events()
    assert report.processed is not None
    assert report.processed.claimed == 0
