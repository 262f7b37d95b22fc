"""Questions to a long history are answered over an index, and what a run cost Spark is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from benchmarks.long_history import DAYS, EVENTS_A_RUN, NAMES, fill_history
from psycopg import sql

from integration.commands import DONE
from integration.commands import tidegate as command
from integration.conftest import MakePlace, MakeProject
from integration.orders import CREATE, FILL, ORDERS
from integration.queued import run_here
from tidegate.core.identity import new_job_id
from tidegate.jobs.history.query import (
    TREND_RUNS,
    TREND_WEEKS,
    History,
    HistoryFilter,
    HistoryQuery,
    trends_statement,
)
from tidegate.jobs.history.record import RunStatus, TaskRecord
from tidegate.jobs.history.writer import Month
from tidegate.jobs.job import KINDS
from tidegate.postgres.connection import Connection
from tidegate.project import Project
from tidegate.spark.session import SparkSessions
from tidegate.spark.tags import shared, spark_measures, tagged, work_tag

EVENTS = 60_000
# Of the twenty that are asked for, each may cost so many rows that are not.
MOST_THROWN_AWAY = 20 * NAMES
LONG_AGO = (datetime.now(UTC) - timedelta(days=DAYS - 10)).date().isoformat()


@dataclass(frozen=True, slots=True)
class Long:
    """A project with a long history."""

    project: Project
    control: Connection
    runs: int
    now: datetime

    @property
    def history(self) -> History:
        return History(self.project.context.plane)

    def ask(self, wanted: HistoryFilter) -> str:
        """How a question for 20 runs was answered."""
        question = HistoryQuery.of("shop", wanted)
        return self.plan(question.statement("tidegate_control", 20), question.values)

    def plan(self, statement: sql.Composable, values: dict[str, Any]) -> str:
        """How Postgres found the answer, without what it had no need to look into."""
        explain = sql.SQL("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ")
        with psycopg.ClientCursor(self.control) as cursor:
            rows = cursor.execute(explain + statement, values).fetchall()
        return "\n".join(row[0] for row in rows if "never executed" not in row[0])


@pytest.fixture(scope="module")
def long(places: MakePlace) -> Iterator[Long]:
    """Filled once; the tests only read."""
    now = datetime.now(UTC)
    with places(ORDERS).open() as project, project.context.plane.connect() as control:
        runs = fill_history(control, project.context.plane, events=EVENTS, now=now)
        assert runs * EVENTS_A_RUN == EVENTS
        yield Long(project, control, runs, now)
        control.execute("SET search_path = tidegate_control")
        control.execute("TRUNCATE tasks, task_events, task_parameters")


def read_whole(plan: str) -> list[str]:
    """What a plan reads from end to end; a month that has not begun is empty."""
    ahead = Month.of(datetime.now(UTC)).next
    found = re.findall(r"Seq Scan on (tasks_\w+|task_events_\w+|task_parameters_\w+)", plan)
    return [one for one in found if Month.of_partition(one) != ahead]


def parts(plan: str, table: str) -> set[str]:
    """The months of a table that a plan may read."""
    return set(re.findall(rf"\b{table}_\d{{4}}_\d{{2}}\b(?!_)", plan))


def thrown_away(plan: str) -> int:
    """How many rows a plan has looked at for nothing."""
    loops, total = 1.0, 0.0
    for line in plan.splitlines():
        if found := re.search(r"\bloops=(\d+)", line):
            loops = float(found[1])
        if found := re.search(r"Rows Removed by (?:Join )?Filter: (\d+)", line):
            total += loops * float(found[1])
    return round(total)


ANY_DAY, FULL = {"full_refresh": "false"}, {"full_refresh": "true"}
OLD = {"day": LONG_AGO}
SEVEN, TWO = ("name_7",), ("name_7", "name_8")
FAILED, NOBODY = (RunStatus.FAILED,), (RunStatus.CANCELLED,)
AN_HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)
WANTED = {
    "all": HistoryFilter(),
    "name": HistoryFilter(names=SEVEN),
    "two names": HistoryFilter(names=TWO),
    "a name nobody has": HistoryFilter(names=("nobody",)),
    "status": HistoryFilter(statuses=FAILED),
    "two statuses": HistoryFilter(statuses=(RunStatus.FAILED, RunStatus.LOST)),
    "status done": HistoryFilter(statuses=(RunStatus.DONE,)),
    "a status nobody has": HistoryFilter(statuses=NOBODY),
    "name and status": HistoryFilter(names=SEVEN, statuses=FAILED),
    "name and parameter": HistoryFilter(names=SEVEN, parameters=ANY_DAY),
    "parameter": HistoryFilter(parameters={"day": date.today().isoformat()}),
    "a parameter of long ago": HistoryFilter(parameters=OLD),
    "parameter and status": HistoryFilter(parameters=OLD, statuses=FAILED),
    "parameter and a status nobody has": HistoryFilter(parameters=ANY_DAY, statuses=NOBODY),
    "parameter and a kind nobody has": HistoryFilter(parameters=ANY_DAY, kinds=("vacuum",)),
    "parameters": HistoryFilter(parameters=ANY_DAY | OLD),
    "parameters that are never together": HistoryFilter(parameters=FULL | OLD),
    "names and parameters": HistoryFilter(names=TWO, parameters=ANY_DAY | OLD),
    "name and parameters": HistoryFilter(names=SEVEN, parameters=ANY_DAY | {"day": "2020-01-01"}),
    "name, parameter and status": HistoryFilter(names=SEVEN, parameters=OLD, statuses=FAILED),
    "kind": HistoryFilter(kinds=("sync",)),
    "a kind nobody has": HistoryFilter(kinds=("vacuum",)),
    "name and kind": HistoryFilter(names=SEVEN, kinds=("sync",)),
    "name and a kind nobody has": HistoryFilter(names=SEVEN, kinds=("vacuum",)),
    "status and a kind nobody has": HistoryFilter(statuses=FAILED, kinds=("vacuum",)),
    "until": HistoryFilter(until=AN_HOUR_AGO),
    "name until": HistoryFilter(names=SEVEN, until=AN_HOUR_AGO),
    "job": HistoryFilter(job_id=new_job_id()),
    "job and parameter": HistoryFilter(job_id=new_job_id(), parameters=ANY_DAY),
    "id": HistoryFilter(ids=(UUID(int=5 << 80), UUID(int=6 << 80))),
}


@pytest.mark.parametrize("since", [None, timedelta(hours=24)], ids=["ever", "a day"])
def test_every_question_is_answered_over_an_index(long: Long, since: timedelta | None) -> None:
    for name, wanted in WANTED.items():
        asked = wanted if since is None else replace(wanted, since=long.now - since)
        for place in (None, (long.now, uuid4())):
            plan = long.ask(replace(asked, before=place))
            assert not read_whole(plan), (name, plan)
            assert thrown_away(plan) <= MOST_THROWN_AWAY, (name, plan)
            if since is not None:
                first = Month.of(long.now - since)
                for table in ("tasks", "task_parameters"):
                    months = parts(plan, table)
                    assert all(one >= first.partition(table) for one in months), (name, plan)


def test_one_run_and_its_events_are_in_one_month_each(long: Long) -> None:
    run = long.history.newest(long.control, "shop", HistoryFilter(), limit=1)[0]
    values = {"recorded_at": run.recorded_at, "id": run.id, "project": "shop", "limit": 1}
    plan = long.plan(
        long.project.context.plane.statement("jobs/history", "list_task_events"), values
    )
    assert not read_whole(plan), plan
    assert len(parts(plan, "task_events")) == 1, plan
    plan = long.ask(HistoryFilter(ids=(run.id, run.id)))
    assert len(parts(plan, "tasks")) == 1, plan
    assert not read_whole(plan), plan


def test_trends_and_the_sweepers_question_go_over_an_index(long: Long) -> None:
    values = {
        "project": "shop",
        "kinds": sorted(KINDS),
        "now": long.now,
        "since": long.now - timedelta(weeks=TREND_WEEKS),
        "runs": TREND_RUNS,
        "weeks": TREND_WEEKS,
        "limit": 10,
    }
    first = Month.of(long.now - timedelta(weeks=TREND_WEEKS)).partition("tasks")
    for names in ([], ["name_7"]):
        statement = trends_statement("tidegate_control", named=bool(names))
        plan = long.plan(statement, values | {"names": names})
        assert not read_whole(plan), plan
        assert all(one >= first for one in parts(plan, "tasks")), plan
    plan = long.plan(long.project.context.plane.statement("jobs/history", "list_unsettled"), values)
    assert not read_whole(plan), plan


def test_without_its_index_the_plan_is_found_wanting(long: Long) -> None:
    with long.control.transaction(force_rollback=True):
        long.control.execute(
            "DROP INDEX tidegate_control.tasks_name, tidegate_control.tasks_status,"
            " tidegate_control.tasks_runs; ALTER TABLE tidegate_control.tasks DROP CONSTRAINT"
            " tasks_pkey"
        )
        assert read_whole(long.ask(HistoryFilter(names=("nobody",))))


def test_luigis_names_find_what_is_there(long: Long) -> None:
    history = long.project.history
    runs = list(history.find_all_by_name("name_7"))
    assert len(runs) == long.runs // NAMES
    assert [one.recorded_at for one in runs] == sorted(
        (one.recorded_at for one in runs), reverse=True
    )
    assert len({one.id for one in runs}) == len(runs)
    assert sum(1 for _ in history.find_all_runs()) == long.runs, "pages leave nothing out"
    day = runs[-1].started_at.date()
    found = list(history.find_all_by_parameters("name_7", day=day, full_refresh=False))
    assert found == [one for one in runs if one.parameters["day"] == day.isoformat()]
    assert found
    assert list(history.find_all_by_parameters("name_7", day=day, full_refresh=True)) == []
    latest = history.find_latest_runs()
    assert abs(len(latest) - long.runs / DAYS) <= 2
    whole = history.find_task_by_id(str(runs[0].id))
    assert isinstance(whole, TaskRecord)
    assert whole == runs[0]
    assert history.find_task_by_id(uuid4()) is None
    assert [one.event.value for one in history.find_all_events(runs[0].id)][:2] == [
        "pending",
        "started",
    ]


def test_runs_are_found_by_any_of_their_parameters_in_pages(long: Long) -> None:
    day = {"day": LONG_AGO}
    runs = [
        one for one in long.project.history.find_all_runs() if one.parameters["day"] == LONG_AGO
    ]
    assert len(runs) > NAMES
    broken = (RunStatus.FAILED, RunStatus.LOST)
    for asked, wanted in (
        (HistoryFilter(parameters=day), runs),
        (HistoryFilter(parameters=day | {"full_refresh": "false"}), runs),
        (HistoryFilter(parameters={"full_refresh": "false"} | day), runs),
        (HistoryFilter(parameters=day | {"full_refresh": "true"}), []),
        (HistoryFilter(parameters=day | {"other": "x"}), []),
        (
            HistoryFilter(parameters=day, statuses=broken),
            [one for one in runs if one.status in broken],
        ),
        (
            HistoryFilter(parameters=day, names=("name_7", "name_8")),
            [one for one in runs if one.name in ("name_7", "name_8")],
        ),
        (
            HistoryFilter(parameters=day, until=runs[9].recorded_at, since=runs[19].recorded_at),
            runs[10:20],
        ),
    ):
        found: list[TaskRecord] = []
        while page := long.history.newest(
            long.control,
            "shop",
            replace(asked, before=(found[-1].recorded_at, found[-1].id) if found else None),
            limit=37,
        ):
            found += page
        assert found == wanted


def test_values_that_begin_alike_are_told_apart_however_long_they_are(long: Long) -> None:
    with long.control.transaction(force_rollback=True):
        run = long.history.newest(long.control, "shop", HistoryFilter(), limit=1)[0]
        for size in (199, 200, 201, 5_000):
            long.control.execute(
                "INSERT INTO tidegate_control.task_parameters VALUES (%s, %s, 'shop', %s, %s, %s)",
                (run.recorded_at, run.id, run.name, f"long_{size}", "x" * size),
            )
            for other in (size - 1, size, size + 1):
                asked = HistoryFilter(parameters={f"long_{size}": "x" * other})
                found = long.history.newest(long.control, "shop", asked, limit=5)
                assert [one.id for one in found] == ([run.id] if other == size else [])


def test_runs_of_another_project_or_with_other_parameters_are_not_found(long: Long) -> None:
    run = long.history.newest(long.control, "shop", HistoryFilter(), limit=1)[0]
    day = {"day": str(run.parameters["day"])}
    for parameters, found in (
        (day | {"full_refresh": "false"}, [run]),
        (day | {"full_refresh": "true"}, []),
        ({"other": "null"}, []),
    ):
        asked = HistoryFilter(job_id=run.job_id, parameters=parameters)
        assert long.history.newest(long.control, "shop", asked, limit=5) == found
    assert long.history.get(long.control, "shop", run.id) == run
    assert long.history.get(long.control, "other", run.id) is None
    for wanted in WANTED.values():
        assert long.history.newest(long.control, "other", wanted, limit=5) == []


def test_trends_of_a_long_history_are_those_of_its_last_runs(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.jobs.history.query.TREND_RUNS", 50)
    trends = long.project.history.trends(now=long.now)
    assert [one.name for one in trends] == sorted(f"name_{n}" for n in range(NAMES))
    seven = next(one for one in trends if one.name == "name_7")
    runs = list(long.project.history.find_all_by_name("name_7"))
    done = [one.seconds for one in runs if one.status is RunStatus.DONE]
    assert len(done) > 50
    assert list(seven.seconds) == done[:50][::-1]
    broken = [one for one in runs if one.status in (RunStatus.FAILED, RunStatus.LOST)]
    weeks = [(long.now - one.recorded_at) // timedelta(weeks=1) for one in broken]
    assert list(seven.failures) == [weeks.count(week) for week in reversed(range(TREND_WEEKS))]
    assert sum(seven.failures) > 0
    assert long.project.history.trends(("name_7",), now=long.now) == [seven]


pytestmark = pytest.mark.usefixtures("spark_copies")
PIPELINES = """
import tidegate as tg

@tg.task
def shuffled(ctx, partitions: int, fails: bool = False):
    found = ctx.spark.range(0, 1_000, 1, partitions).selectExpr("id % 7 AS k")
    assert found.groupBy("k").count().count() == 7
    if fails:
        raise ValueError("the disk is full")

@tg.task
def idle(ctx): ...

@tg.task
def kills_spark(ctx):
    assert ctx.spark.range(10).count() == 10
    ctx.spark.sparkContext._gateway.proc.kill()
    ctx.spark.sparkContext._gateway.proc.wait()

@tg.task
def stops_spark(ctx):
    assert ctx.spark.range(10).count() == 10
    ctx.spark.stop()
"""


def newest(project: Project, name: str) -> TaskRecord:
    return next(iter(project.history.find_all_by_name(name)))


def cost(project: Project, name: str) -> Any:
    return (newest(project, name).metrics or {}).get("spark")


def test_each_sync_and_task_is_remembered_with_its_own_cost_whether_it_is_done_or_fails(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, pipelines=PIPELINES, databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    sync = cost(project, "orders")
    assert min(sync["jobs"], sync["stages"], sync["tasks"], sync["executor_run_ms"]) >= 1
    assert sync["failed_tasks"] == 0
    assert not {"shared_jobs", "partial"} & set(sync)

    assert project.run_task("shuffled", partitions=2).exit_code == 0
    small = cost(project, "shuffled")
    assert project.run_task("shuffled", partitions=9, fails=True).exit_code == 1
    large = cost(project, "shuffled")
    assert newest(project, "shuffled").status is RunStatus.FAILED
    assert large["tasks"] - small["tasks"] == 7, "the tasks of one are not the other's"
    for found in (small, large):
        assert found["shuffle_write_bytes"] > 0
        assert found["shuffle_read_bytes"] > 0
        assert found["executor_cpu_ms"] <= found["executor_run_ms"] + 50
        assert found["peak_memory_bytes"] > 0
    project.run_task("idle")
    assert cost(project, "idle") is None

    out = run_here(place, "history", "--id", str(newest(project, "shuffled").id)).out
    assert "  spark:     1 job, " in out
    assert f", {large['tasks']} tasks\n             run " in out
    assert "\n             shuffle read " in out
    assert all(len(line) <= 80 for line in out.partition("what happened")[0].splitlines())


def test_shared_jobs_and_many_stages_are_said_to_be_so(
    warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = warm_spark.get()

    def run(partitions: int) -> None:
        session.sparkContext._jsc.sc().range(0, 10, 1, partitions).count()

    assert spark_measures("nobody") is None
    before = session.sparkContext.getLocalProperty("spark.job.tags")
    with shared(session, ["first", "second"]):
        run(3)
    assert session.sparkContext.getLocalProperty("spark.job.tags") == before
    with tagged(session, work_tag("first")), shared(session, ["first"]):
        run(5)
    first, second = spark_measures("first"), spark_measures("second")
    assert first is not None
    assert second is not None
    assert (first["jobs"], first["tasks"], first["shared_jobs"]) == (2, 8, 1)
    assert (second["jobs"], second["tasks"], second["shared_jobs"]) == (1, 3, 1)

    monkeypatch.setattr("tidegate.spark.tags._MOST_STAGES", 2)
    with tagged(session, work_tag("many")):
        for partitions in (2, 3, 4):
            run(partitions)
    found = spark_measures("many")
    assert found is not None
    assert (found["jobs"], found["stages"], found["tasks"]) == (3, 2, 7)
    assert found["partial"] is True

    # A context that was stopped beneath us has none of what is asked.
    monkeypatch.setattr(session.sparkContext, "_jsc", None)
    assert spark_measures("many") is None


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["kills_spark", "stops_spark"])
def test_a_spark_that_is_gone_at_the_end_fails_no_job(make_place: MakePlace, name: str) -> None:
    place = make_place(ORDERS, pipelines=PIPELINES, databases=2)
    done = command(place.folder, "run", name)
    assert done.code == DONE, done.err
    with place.open() as project:
        assert newest(project, name).status is RunStatus.DONE
        assert cost(project, name) is None
