"""The phases as jobs: of a command, of workers, every five minutes; and what is told of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.commands import DONE, FAILED, USAGE, Done
from integration.conftest import MakePlace, NoSpark, Place
from integration.here import tidegate
from integration.raw_events import event_place, generate
from tidegate.core.errors import BusyError, ControlMismatch, UsageError
from tidegate.core.identity import new_attempt_id, new_write_id, staging_table
from tidegate.events.model import Phase
from tidegate.events.project_events import find_events
from tidegate.events.runner import event_request
from tidegate.events.status import count_failed, read_event_status, retry_events
from tidegate.jobs.job import Claim, JobStatus
from tidegate.jobs.queue import Jobs
from tidegate.jobs.scheduler import ScheduleRound
from tidegate.jobs.schedules import Schedules
from tidegate.jobs.worker_records import WorkerIdentity, Workers
from tidegate.project import Project

JOBS = "SELECT name, status FROM tidegate_control.jobs ORDER BY job_id"
FACTS = "SELECT count(*) FROM warehouse.fact_events"
NAMES = [f"events.{one}" for one in Phase]
VIEW = "views/mv_revenue_summary.sql"
MODEL = """
[facts]
table = "w.facts"
partition = "at"
hashed = ["at"]
[facts.columns]
at = { type = "timestamptz", required = true }
"""


def make_events(make_place: MakePlace, **settings: Any) -> Place:
    """A project of the template; its Spark is never started."""
    return event_place(make_place, made=False, more={"spark_from": 1_000_000, **settings})


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


def run(place: Place, *arguments: str) -> Done:
    return tidegate(place.folder, *arguments)


def edit(path: Path, before: str, after: str) -> str:
    """Change a file; its text before is returned."""
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    return text


def test_the_phases_are_jobs_each_works_by_itself_and_what_is_told_of_them(
    place: Place, project: Project
) -> None:
    context = project.context
    assert not read_event_status(context).is_provisioned
    with pytest.raises(UsageError, match="there is no phase 'load'"):
        project.run_events("load")
    for phase in Phase:
        # On an empty database.
        report = project.run_events(phase)
        given = (report.provisioned, report.processed, report.refreshed)
        assert [one is not None for one in given] == [one is phase for one in Phase]
    assert place.control.execute(JOBS) == [(name, "done") for name in NAMES]
    seen: list[Phase] = []
    project.run_events("refresh", "provision", ended=lambda phase, _: seen.append(phase))
    assert seen == [Phase.PROVISION, Phase.REFRESH], "they keep their order"

    # Events of months that were not provisioned get them at once.
    totals = generate(project, 500)
    waiting = read_event_status(context)
    assert (waiting.pending, waiting.failed, waiting.last_hour.batches) == (500, 0, 0)
    assert waiting.lag_seconds is not None
    assert waiting.lag_seconds > 0
    done = project.run_events("process").processed
    assert done is not None
    malformed = totals.malformed.total()
    assert (done.facts, done.duplicates) == (totals.facts, totals.duplicates)
    assert (done.failed, done.left_pending) == (malformed, 0)
    assert place.target.value(FACTS) == totals.facts
    kept = f"SELECT result->>'facts' FROM tidegate_control.jobs WHERE name = '{NAMES[1]}'"
    assert place.control.execute(f"{kept} ORDER BY job_id DESC LIMIT 1") == [(str(totals.facts),)]
    found = read_event_status(context)
    assert (found.pending, found.failed) == (0, malformed)
    assert sum(one.events for one in found.reasons) == malformed
    assert (found.last_hour.facts, found.partitions >= 3) == (totals.facts, True)
    assert found.last_hour.done == totals.facts + totals.duplicates
    assert found.last_hour.per_second is not None
    assert [one.is_current for one in found.views] == [False] * 4
    report = project.run_events()
    assert [one.outcome for one in report.refreshed or ()] == ["refreshed"] * 4
    assert [one.is_current for one in read_event_status(context).views] == [True] * 4
    again = project.run_events()
    assert {one.outcome for one in again.refreshed or ()} == {"unchanged"}

    # Failed events are tried again by their reason, by their id, or all.
    deep = totals.malformed["deep"]
    assert count_failed(context, reason="nested deeper") == deep > 0
    assert retry_events(context, reason="nested deeper") == deep
    one = read_event_status(context).reasons[0].example
    assert retry_events(context, ids=[one]) == 1
    assert read_event_status(context).pending == deep + 1
    assert retry_events(context) == malformed - deep - 1
    assert retry_events(context) == 0
    retried = project.run_events("process").processed
    assert retried is not None
    assert (retried.claimed, retried.failed, retried.facts) == (malformed, malformed, 0)

    # Those that fail again at once are retried once.
    place.target.execute(
        "CREATE FUNCTION fail_again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " NEW.status := 'failed'; NEW.processed_at := clock_timestamp(); RETURN NEW; END $$",
        "CREATE TRIGGER fail_again BEFORE UPDATE ON raw_events"
        " FOR EACH ROW EXECUTE FUNCTION fail_again()",
    )
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(retry_events(context)), daemon=True)
    thread.start()
    thread.join(20)
    assert counts == [malformed]


def test_what_a_dead_instance_staged_is_swept(place: Place, project: Project) -> None:
    project.run_events("provision")
    table = staging_table(project.context.control_id(), new_attempt_id(), new_write_id())
    left = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'stg\\_%'"

    def tidy() -> None:
        with project.context.plane.connect() as control:
            project.sweeper("test").run_once(control, tidy=True)

    for sweep in (lambda: project.run_events("process"), tidy):
        place.target.execute(f"CREATE UNLOGGED TABLE tidegate.{table} (id int)")
        assert place.target.value(left) == 1
        sweep()
        assert place.target.value(left) == 0


def hold(project: Project, phase: Phase) -> tuple[Claim, Any]:
    """Another process that has a phase; it is there for as long as its session is."""
    context = project.context
    context.control_id()
    session = context.plane.connect()
    worker = WorkerIdentity.of_this_process(project.name, "another")
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


def test_a_phase_that_another_has_is_waited_for_but_not_for_ever(
    make_place: MakePlace, place: Place, project: Project
) -> None:
    for phase in Phase:
        # What a dead process had is taken over at once.
        hold(project, phase)[1].close()
    assert project.run_events().refreshed is not None
    left = "SELECT count(*) FROM tidegate_control.jobs WHERE status = 'running'"
    assert place.control.value(left) == 0

    for phase in (Phase.PROVISION, Phase.REFRESH):
        claim, session = hold(project, phase)
        reports: list[object] = []
        thread = threading.Thread(target=lambda: reports.append(project.run_events(phase)))  # noqa: B023
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        Jobs(project.context.plane).finish(session, claim, JobStatus.DONE, actor="another")
        thread.join(20)
        session.close()
        assert len(reports) == 1

    with opened(make_events(make_place, time_budget="1 s")) as impatient:
        _, session = hold(impatient, Phase.REFRESH)
        with pytest.raises(BusyError, match="held by"):
            impatient.run_events("refresh")
        session.close()


def test_events_of_another_control_plane_are_taken_over_only_when_told(
    make_place: MakePlace, place: Place, project: Project
) -> None:
    project.run_events()
    other = make_events(make_place, time_budget="5 s")
    edit(
        other.folder / "tidegate.toml",
        f'warehouse = "{other.target.conninfo}"',
        f'warehouse = "{place.target.conninfo}"',
    )
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
        assert scheduler.run_once(control, clock) == ScheduleRound()
        five = timedelta(minutes=5)
        assert scheduler.run_once(control, clock + five).queued == 1
        assert scheduler.run_once(control, clock + five) == ScheduleRound()
        # The jobs of the last tick have not ended: nothing is queued twice.
        assert scheduler.run_once(control, clock + 2 * five).coalesced == 1
    assert place.control.execute(JOBS) == [(name, "pending") for name in NAMES]
    project.worker(burst=True, concurrency=3).run()
    assert place.control.execute(JOBS) == [(name, "done") for name in NAMES]
    ended = "SELECT name FROM tidegate_control.jobs ORDER BY finished_at"
    assert [row[0] for row in place.control.execute(ended)] == NAMES
    assert place.target.value(FACTS) == totals.facts


def test_a_view_that_fails_is_told_last_and_a_corrected_model_takes_what_failed_before(
    place: Place, project: Project
) -> None:
    view, model = place.folder / VIEW, place.folder / "events.toml"
    query = view.read_text()
    view.write_text("SELECT 1 / 0 AS account_id")
    text = edit(model, "session_id = { max_length = 200 }", "session_id = { max_length = 2 }")
    totals = generate(project, 300)
    report = project.run_events()
    assert report.error is not None
    assert "1 of 4 views could not be refreshed: analytics.mv_revenue" in report.error.message
    assert report.exit_code == FAILED
    assert [one.outcome for one in report.refreshed or ()].count("refreshed") == 3
    assert place.control.execute(JOBS)[-1] == ("events.refresh", "failed")
    assert report.processed is not None
    assert report.processed.failed > totals.malformed.total()

    view.write_text(query)
    model.write_text(text)
    assert run(place, "event", "retry", "--reason", "session_id is").code == DONE
    assert project.run_events().exit_code == DONE
    assert place.target.value(FACTS) == totals.facts
    failed = "SELECT count(*) FROM raw_events WHERE status = 'failed'"
    assert place.target.value(failed) == totals.malformed.total()


def test_the_commands_print_lines_and_documents(place: Place, project: Project) -> None:
    before = run(place, "plan", "--json").document["events"]
    assert {"public.raw_events", "warehouse.fact_events"} <= set(before["missing"])
    assert place.target.value("SELECT to_regclass('public.raw_events') IS NULL")
    assert examined(place) == [
        ("ok", "the model is valid; the first tidegate event run makes the tables")
    ]
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
    failed = totals.malformed.total()
    assert status["failed"] == failed
    said = run(place, "event", "status").out
    assert "nothing waits" in said
    assert "why events failed" in said
    line = f"events: 0 waiting, {failed} failed, views up to date; see: tidegate event"
    assert line in run(place, "status").out
    dry = run(place, "event", "retry", "--all", "--dry-run")
    assert f"{failed} failed events would wait again" in dry.out
    assert run(place, "event", "retry", "--all", "--json").document["retried"] == failed
    for wrong in (["run", "--budget", "soon"], ["retry"], ["retry", "not-an-id"],
                  ["retry", "--all", "--reason", "x"]):  # fmt: skip
        assert run(place, "event", *wrong).code == USAGE, wrong

    # Plan and doctor tell of a view that cannot be made and of events that wait too long.
    query = (place.folder / VIEW).read_text()
    (place.folder / VIEW).write_text("SELECT no_such FROM nothing")
    done = run(place, "plan")
    assert done.code == DONE, done.err
    assert f"{failed} events waiting" in done.out
    assert "warning    view analytics.mv_revenue_summary: relation" in done.out
    found = run(place, "plan", "--json").document["events"]
    assert found["missing"] == []
    assert "occurred_at" in found["hashed"]
    (place.folder / VIEW).write_text(query)
    place.target.execute(
        "INSERT INTO raw_events (id, body, received_at)"
        " VALUES (gen_random_uuid(), '{}', now() - interval '5 hours')",
        "UPDATE analytics.mv_refresh_log SET error = 'no' WHERE mv_name LIKE '%revenue%'",
    )
    assert [level for level, _ in examined(place)] == ["warn", "warn"]
    place.target.execute("ALTER TABLE warehouse.fact_events ALTER properties TYPE json")
    ((level, told),) = examined(place)
    assert level == "fail"
    assert "warehouse.fact_events.properties is json;" in told


def examined(place: Place) -> list[tuple[str, str]]:
    """What doctor says of events."""
    checks = run(place, "doctor", "--json").document["checks"]
    return [(one["level"], one["found"]) for one in checks if one["name"] == "events"]


def test_settings_and_models_that_cannot_work_are_refused(
    make_place: MakePlace, place: Place
) -> None:
    for arguments in (["run"], ["status"], ["retry", "--all"], ["generate"]):
        done = tidegate(make_place().folder, "event", *arguments)
        assert done.code == USAGE
        assert "this project has no events" in done.said
        assert "tidegate init --template events" in done.err
    model, toml = place.folder / "events.toml", place.folder / "tidegate.toml"
    text = edit(model, 'hashed = ["occurred_at", ', "hashed = [")
    done = run(place, "plan")
    assert done.code == USAGE
    assert "occurred_at" in done.err
    ((level, found),) = examined(place)
    assert (level, "occurred_at" in found) == ("fail", True)
    model.write_text(MODEL.replace('["at"]', '["then"]'))
    done = run(place, "event", "generate", "--json")
    assert done.code == USAGE
    assert 'events.toml: facts.hashed has "then"' in done.document["message"]
    model.write_text(text)
    for plan in (["--duplicates", "0.6", "--malformed", "0.5"], ["--count", "0"],
                 ["--malformed", "1.5"], ["--until", "tomorrow"]):  # fmt: skip
        assert run(place, "event", "generate", *plan).code == USAGE, plan
    assert place.target.value("SELECT to_regclass('raw_events')") is None

    settings = edit(toml, "[events]\n", '[events]\nschedule = "every day"\n')
    done = run(place, "event", "status")
    assert done.code == USAGE
    assert 'schedule is "every day"; expected five fields' in done.err
    toml.write_text(settings)
    edit(toml, "[connections]\n", '[connections]\nlake = { type = "iceberg" }\n')
    edit(toml, 'connection = "warehouse"', 'connection = "lake"')
    with place.open() as project, pytest.raises(UsageError, match="which is a lake"):
        project.run_events()


def test_made_up_events_are_added_and_the_raw_table_is_made(place: Place) -> None:
    made = ("event", "generate", "--count", "50", "--seed", "1")
    done = run(place, *made)
    assert done.code == DONE, done.said
    assert done.out.startswith("added 50 events to warehouse:public.raw_events: ")
    assert done.out.endswith("; seed 1\n")
    assert place.target.value("SELECT count(*) FROM raw_events WHERE status = 'pending'") == 50
    again = run(place, *made)
    assert "added 0 events to warehouse:public.raw_events (50 were there already)" in again.out
    # Without a seed they are new each time.
    for count in (60, 70):
        assert run(place, "event", "generate", "--count", "10").code == DONE
        assert place.target.value("SELECT count(*) FROM raw_events") == count
    file = place.folder / "totals.json"
    done = run(place, *made, "--totals", str(file), "--json")
    assert json.loads(file.read_text()) == done.document
    assert done.document["added"] == 0
    done = run(place, *made[:3], "5", "--totals", "no/such/folder.json")
    assert done.code == FAILED
    assert "the events were added" in done.err


def test_a_project_for_events_is_made_and_nothing_is_written_over(tmp_path: Path) -> None:
    done = tidegate(tmp_path, "init", "shop", "--template", "events")
    assert done.code == DONE
    for step in ("event generate --count 100000", "event run", "event status"):
        assert f"tidegate {step}" in done.out
    assert (tmp_path / "shop" / VIEW).is_file()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "events.toml").write_text("mine")
    for folder, arguments, said in (
        (".", ["shop", "--template", "events"], "has a tidegate.toml already"),
        ("mine", ["--template", "events"], "events.toml is in "),
        ("mine", ["--template", "event"], "there is no template 'event'"),
        ("mine", ["--template", "events", "--source", "postgresql://x/y"], "were both given"),
    ):
        done = tidegate(tmp_path / folder, "init", *arguments)
        assert done.code == USAGE
        assert said in done.err
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["events.toml"]
    assert (tmp_path / "mine" / "events.toml").read_text() == "mine"


def test_uninstall_takes_the_ledger_of_events_and_leaves_their_tables(
    place: Place, project: Project
) -> None:
    totals = generate(project, 50)
    project.run_events()
    project.close()
    done = run(place, "db", "uninstall", "--yes")
    assert done.code == DONE, done.err
    assert place.target.value("SELECT to_regnamespace('tidegate') IS NULL"), done.out
    assert place.target.value(FACTS) == totals.facts
    # What is left is taken up again.
    with opened(place) as again:
        report = again.run_events()
    assert report.processed is not None
    assert report.processed.claimed == 0
