"""Schedulers and workers are SIGKILLed all the time: each task of a graph is done exactly once."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeQueue
from acceptance.harness import NO_SPARK
from acceptance.processes import Process, until
from acceptance.queueing import QUICK, Queue
from acceptance.spark_server import SparkServer
from chaos_seeds import chosen
from tidegate.core.errors import BusyError, UsageError
from tidegate.jobs.schedules import Schedules
from tried import count

MONTH = "2026-05"
SECTIONS = {"scheduler": {"poll": "100ms"}, "resources": {"pool": 4}}
WORKER = {**QUICK, "lease": "5s", "heartbeat": "1s"}
# Effects are only ever added: what is done twice is there twice.
TABLES = """
CREATE TABLE public.calls (id bigint GENERATED ALWAYS AS IDENTITY, step text NOT NULL);
CREATE TABLE public.effects (
    id bigint GENERATED ALWAYS AS IDENTITY, step text NOT NULL, seen int NOT NULL
);
"""
PIPELINES = """
import json
import random
from datetime import date

import tidegate as tg

SEED, FAILING, SLOW, WAVES, DAYS = {seed}, {failing}, {slow}, {waves}, {days}
GRAPH = json.loads('''{graph}''')

def act(ctx, step, within=None):
    connection = ctx.connect("warehouse")
    (call,) = connection.execute(
        "INSERT INTO public.calls (step) VALUES (%s) RETURNING id", (step,)
    ).fetchone()
    chance = random.Random(f"{{SEED}}/{{step}}/{{call}}")
    connection.execute("SELECT pg_sleep(%s)", (chance.uniform(0, SLOW),))
    if chance.random() < FAILING:
        raise ValueError("bad luck, before")
    with connection.transaction():
        connection.execute(
            "INSERT INTO public.effects (step, seen)"
            " SELECT %s, count(DISTINCT step) FROM public.effects WHERE step = ANY(%s)",
            (step, GRAPH[step]),
        )
        connection.execute("SELECT pg_sleep(%s)", (chance.uniform(0, SLOW),))
    if chance.random() < FAILING:
        raise ValueError("bad luck, after")

def is_there(ctx, step):
    return ctx.connect("warehouse").execute(
        "SELECT EXISTS (SELECT FROM public.effects WHERE step = %s)", (step,)
    ).fetchone()[0]

def steps(names):
    for name in names:
        kind, number = name.split()
        yield tg.needs(kind, number=int(number))

@tg.task(
    requires=lambda number: list(steps(GRAPH[f"node {{number}}"])),
    complete=lambda ctx, number: is_there(ctx, f"node {{number}}"),
    retries=200, retry_delay="0.1s", resources=["pool"],
)
def node(ctx, number: int):
    act(ctx, f"node {{number}}")

# Its marker is in the transaction that ends its job, and so may be missing behind the effect.
@tg.task(
    requires=lambda number: list(steps(GRAPH[f"brief {{number}}"])), retries=1, retry_delay="0.1s"
)
def brief(ctx, number: int):
    act(ctx, f"brief {{number}}")

# Rows without a key: one that is published twice would show.
@tg.task(
    target="warehouse:marts.rows", mode="append", retries=2, retry_delay="0.1s",
    requires=lambda number: list(steps(GRAPH[f"frame {{number}}"])),
)
def frame(ctx, number: int):
    if random.random() < FAILING:
        raise ValueError("bad luck")
    return ctx.spark.range(1).selectExpr(f"{{number}} AS number", "uuid() AS token")

def declare(wave):
    @tg.task(
        name=f"wave_{{wave}}", schedule=f"{{wave}} 0 1-{{DAYS}} 5 *", catch_up="all", priority=wave,
        retries=2, retry_delay="0.1s",
        requires=lambda day: list(steps(GRAPH[f"wave_{{wave}} {{day}}"])),
    )
    def top(ctx, day: date):
        act(ctx, f"wave_{{wave}} {{day}}")

for wave in range(WAVES):
    declare(wave)
"""
# Where nobody would hit by chance; the number says at which passage.
FINE_POINTS = {
    "worker": ("job.finishing", "publish.marked", "job.settling", "job.finished", "job.settling@3"),
    "scheduler": ("tick.queued", "tick.queued@2", "tick.noted", "tick.committed"),
}


@dataclass(frozen=True, slots=True)
class Storm:
    """How large the graph is, and how bad it gets; one in `frames` nodes is published by Spark."""

    tasks: int
    waves: int
    days: int
    workers: int
    kills: int
    seed: int
    schedulers: int = 1
    frames: int = 0
    failing: float = 0.12
    slow: float = 0.12

    @property
    def tops(self) -> list[tuple[str, date]]:
        days = [date.fromisoformat(f"{MONTH}-{day:02}") for day in range(1, self.days + 1)]
        return [(f"wave_{wave}", day) for wave in range(self.waves) for day in days]

    def graph(self) -> dict[str, list[str]]:
        """Each step and those it requires: some of the last before it; all lead to a top.

        Every fifty it begins anew: to ask all of a graph whether they are done takes its time, in
        which a scheduler must not always be killed.
        """
        chance, nodes = random.Random(self.seed), list[str]()
        found: dict[str, list[str]] = {}
        for number in range(self.tasks - len(self.tops)):
            kind = "brief" if number % 4 == 3 else "node"
            if self.frames and number % self.frames == 1:
                kind = "frame"
            last = nodes[max(number // 50 * 50, number - 12) :]
            nodes.append(f"{kind} {number}")
            found[nodes[-1]] = sorted(chance.sample(last, k=min(len(last), chance.randrange(4))))
        tops = [f"{name} {day}" for name, day in self.tops]
        for place, top in enumerate(tops):
            some = slice(len(nodes) * place // len(tops), len(nodes) * (place + 1) // len(tops))
            found[top] = nodes[some]
        return found

    def pipelines(self) -> str:
        return PIPELINES.format(
            seed=self.seed,
            failing=self.failing,
            slow=self.slow,
            waves=self.waves,
            days=self.days,
            graph=json.dumps(self.graph()),
        )


@dataclass(slots=True)
class Crew:
    """The processes of one kind, each replaced when it has been killed."""

    queue: Queue
    kind: str
    size: int
    chance: random.Random
    armed: bool = True
    living: list[Process] = field(default_factory=list)
    killed: int = 0

    def __post_init__(self) -> None:
        self.living += [self._start() for _ in range(self.size)]

    def kill(self) -> None:
        """One at random, at a random moment after it has started; one may have died by itself."""
        victim = self.chance.choice(self.living)
        until(lambda: not victim.alive or bool(victim.out), f"a {self.kind} to be ready")
        time.sleep(self.chance.uniform(0.0, 0.8))
        assert victim.kill().code == -signal.SIGKILL, victim.wait()
        self.killed += 1
        self.living.remove(victim)
        self.living.append(self._start())

    def relieve(self) -> None:
        """Replace those that got to their fine point."""
        for process in [one for one in self.living if not one.alive]:
            ended = process.wait()
            assert ended.code == -signal.SIGKILL, ended
            self.killed += 1
            self.living.remove(process)
            self.living.append(self._start())

    def _start(self) -> Process:
        fine = self.armed and self.chance.random() < 0.5
        failpoint = f"{self.chance.choice(FINE_POINTS[self.kind])}=kill" if fine else None
        options = ("--concurrency", "3") if self.kind == "worker" else ()
        return self.queue.scene.start_command(self.kind, *options, failpoint=failpoint)


def weather(queue: Queue, storm: Storm) -> None:
    """Kill until all kills are done and all tasks, too; who failed for good is asked for again."""
    chance = random.Random(storm.seed)
    with psycopg.connect(queue.scene.destination, autocommit=True) as connection:
        connection.execute(TABLES)
    waiting = _pause_all(queue, storm)
    crews = [
        Crew(queue, "scheduler", storm.schedulers, chance),
        Crew(queue, "worker", storm.workers, chance),
    ]
    per_wave = max(1, storm.kills // (2 * storm.waves))
    for number in range(storm.kills):
        if number % per_wave == 0 and waiting:
            _resume(queue, waiting.pop(0))
        chance.choices(crews, weights=[1, 2])[0].kill()
        for crew in crews:
            crew.relieve()
        if number % 3 == 2:
            _ask_again(queue)
    for name in waiting:
        _resume(queue, name)
    for crew in crews:
        crew.armed = False
    with psycopg.connect(queue.scene.control, autocommit=True) as control:
        until(lambda: _is_over(queue, storm, crews, control), "all tasks to be done", seconds=600)
    for crew in crews:
        for process in crew.living:
            process.kill()


def assert_weathered(queue: Queue, storm: Storm) -> None:
    """Each task is done exactly once, after what it requires, and known to be, by plain SQL."""
    control, warehouse, graph = queue.scene.control, queue.scene.destination, storm.graph()
    effects = dict(
        _rows(warehouse, "SELECT step, array_agg(seen ORDER BY id) FROM public.effects GROUP BY 1")
    )
    published = _rows(warehouse, _PUBLISHED) if storm.frames else []
    wrong = {
        step: effects.get(step)
        for step, needed in graph.items()
        if step.startswith("node") and effects.get(step) != [_acting(needed)]
    }
    count(rows_compared=len(graph), differences=len(wrong))
    assert wrong == {}, "not done once, or before what it requires"
    # An effect that its task does not look for may happen again; that it is done is known once.
    others = [step for step in graph if step.startswith(("brief", "wave"))]
    wrong = {
        step: effects.get(step)
        for step in others
        if set(effects.get(step, [])) != {_acting(graph[step])}
    }
    assert wrong == {}, "not done, or before what it requires"
    frames = sorted(int(step.split()[1]) for step in graph if step.startswith("frame"))
    assert [number for (number,) in published] == frames
    assert set(effects) == {step for step in graph if not step.startswith("frame")}
    marked = [name for (name,) in _rows(control, _MARKED)]
    marked += [f"frame {number}" for (number,) in published]
    assert sorted(marked) == sorted(graph), "markers = tasks"
    updates = "SELECT count(*) FROM tidegate.table_updates"
    assert not frames or _rows(warehouse, updates) == [(len(frames),)]
    noted = _rows(control, "SELECT name, tick::date FROM tidegate_control.schedule_ticks")
    assert sorted(noted) == sorted(storm.tops), "each tick once"
    assert _rows(control, "SELECT * FROM tidegate_control.job_needs") == []
    queue.assert_ended_once()
    lost = "SELECT count(*) FROM tidegate_control.job_attempts WHERE outcome = 'lost'"
    assert oracle.scalar(control, lost), "no kill hit any work"
    failed = (
        "SELECT count(*) FROM tidegate_control.job_attempts WHERE outcome IN ('error', 'failed')"
    )
    assert oracle.scalar(control, failed), "nothing failed"
    queue.sweep()
    running = "SELECT name FROM tidegate_control.tasks WHERE status = 'running'"
    assert _rows(control, running) == [], "the history knows how each attempt ended"


_PUBLISHED = "SELECT number FROM marts.rows ORDER BY 1"
_MARKED = """
SELECT name || ' ' || coalesce(parameters ->> 'number', parameters ->> 'day')
FROM tidegate_control.task_markers
"""


def _acting(needed: list[str]) -> int:
    """How many of these leave an effect that the next one can see."""
    return sum(not step.startswith("frame") for step in needed)


def _pause_all(queue: Queue, storm: Storm) -> list[str]:
    """Every schedule is behind and paused, as if nobody had been there since its first day."""
    with queue.opened() as project, project.context.plane.connect() as control:
        project.scheduler("test").run_once(control)
        schedules = Schedules(project.context.plane, project.name)
        names = [one.name for one in schedules.list(control)]
        assert len(names) == storm.waves
        for name in names:
            assert schedules.pause(control, name, "test")
        behind = datetime.fromisoformat(f"{MONTH}-01T00:00Z") - timedelta(hours=1)
        control.execute("UPDATE tidegate_control.schedules SET seen_until = %s", (behind,))
        return names


def _resume(queue: Queue, name: str) -> None:
    with queue.opened() as project, project.context.plane.connect() as control:
        assert Schedules(project.context.plane, project.name).resume(control, name)


def _ask_again(queue: Queue) -> None:
    """As a person would, for every tick whose task has failed for good, or waited for such."""
    failed = _rows(queue.scene.control, _FAILED)
    with queue.opened() as project:
        for name, day in failed:
            try:
                project.submit_task(name, day=day)
            except (UsageError, BusyError):
                continue  # done meanwhile


_FAILED = """
SELECT DISTINCT j.name, j.payload #>> '{parameters,day}'
FROM tidegate_control.jobs j
WHERE j.name LIKE 'wave%' AND j.status = 'failed' AND NOT EXISTS (
    SELECT FROM tidegate_control.jobs k
    WHERE k.name = j.name AND k.payload = j.payload AND k.status <> 'failed'
)
ORDER BY 1, 2
"""


def _is_over(
    queue: Queue, storm: Storm, crews: list[Crew], control: psycopg.Connection[tuple[int]]
) -> bool:
    for crew in crews:
        crew.relieve()
    if control.execute(_UNFINISHED).fetchone() != (0,):
        return False
    if control.execute(_TOPS_MARKED).fetchone() == (len(storm.tops),):
        return True
    _ask_again(queue)
    return False


_UNFINISHED = "SELECT count(*) FROM tidegate_control.job_queue"
_TOPS_MARKED = "SELECT count(*) FROM tidegate_control.task_markers WHERE name LIKE 'wave%'"


def _rows(conninfo: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


@pytest.mark.chaos
@pytest.mark.parametrize("tasks", [50, 500])
def test_tasks_are_done_once_though_all_who_do_them_are_killed(
    make_queue: MakeQueue, spark_server: SparkServer, tasks: int
) -> None:
    """With another seed every time; many tasks, and some of them in Spark."""
    seed = chosen(random.randrange(1, 10**6))
    if tasks == 50:
        storm = Storm(tasks, waves=5, days=2, workers=2, kills=12, seed=seed)
    else:
        storm = Storm(
            tasks, waves=10, days=5, workers=3, schedulers=2, kills=80, frames=10, seed=seed
        )
    queue = make_queue(
        2,
        tables=(),
        pipelines=storm.pipelines(),
        worker=WORKER,
        sections=SECTIONS,
        spark={"remote": spark_server.url} if storm.frames else NO_SPARK,
    )
    weather(queue, storm)
    assert_weathered(queue, storm)
