"""`tg.publish` in a script that gets killed, doubled and frozen: its rows are in once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance import oracle
from acceptance.processes import Commands, Process, assert_killed
from acceptance.spark_server import SparkServer
from acceptance.test_named_points import IN_PROCESS, IN_WORKERS
from conftest import MakeDatabase
from projects import toml

ROWS = 300
# Rows without a key: a second publish would show. Of each attempt, other values come.
SCRIPT = """
import os, sys
from pyspark.sql import SparkSession
import tidegate as tg

spark = SparkSession.builder.{session}.getOrCreate()
df = spark.range(0, {rows}, 1, 3).selectExpr("id", "uuid() AS token")
report = tg.publish(
    df, target="warehouse:marts.tokens", mode="append", update_id=sys.argv[1], wait="60s"
)
print(report.status, report.rows, flush=True)
os._exit(0)
"""
PASSED = tuple(point for point in IN_PROCESS if point != "batch.planned")


@dataclass(slots=True)
class Job(Commands):
    """A script of a user's own beside a project on two databases."""

    destination: str
    control: str
    session: str

    def __post_init__(self) -> None:
        self.folder.mkdir()
        sections = {
            "project": {"name": "shop", "control": self.control},
            "connections": {"warehouse": self.destination},
            # Five lost beats: a busy machine may delay one or two.
            "worker": {"lease": "5s", "heartbeat": "1s"},
        }
        (self.folder / "tidegate.toml").write_text(toml(sections), encoding="utf-8")
        script = SCRIPT.format(session=self.session, rows=ROWS)
        (self.folder / "job.py").write_text(script, encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        return {"TIDEGATE_PROJECT_DIR": str(self.folder), "PYSPARK_PYTHON": sys.executable}

    def start(self, update_id: str = "tokens-1", failpoint: str | None = None) -> Process:
        command = [str(self.folder / "job.py"), update_id]
        return self.start_process(command, failpoint=failpoint)

    def run(self, update_id: str = "tokens-1") -> str:
        """One run that must succeed; what it printed."""
        ended = self.start(update_id).wait()
        assert ended.code == 0, ended
        return ended.out.strip()

    def die_at(self, point: str, update_id: str = "tokens-1") -> None:
        process = self.start(update_id, f"{point}=kill")
        if point in IN_WORKERS:
            ended = process.wait()
            assert ended.code == 1, ended
            assert "Python worker exited unexpectedly" in ended.err, ended
        else:
            assert_killed(process, point)

    def start_and_hold(self, point: str) -> tuple[Process, Path]:
        return self.hold(point, lambda armed: self.start(failpoint=armed))

    def control_sessions(self) -> int:
        """How many sessions have last looked whether a holder is dead."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND query LIKE '%%pg_locks%%'"
        )
        return int(oracle.scalar(self.control, query))

    def assert_once(self, *update_ids: str) -> None:
        """Every row of every update is in once, with one marker, and nothing is left over."""
        counted = "SELECT id, count(*) FROM marts.tokens GROUP BY 1 ORDER BY 1"
        counts = oracle.rows(self.destination, counted)
        marked = "SELECT update_id, target_table FROM tidegate.table_updates ORDER BY 1"
        markers = oracle.rows(self.destination, marked)
        assert counts == [(number, len(update_ids)) for number in range(ROWS)]
        assert markers == [(update_id, "marts.tokens") for update_id in sorted(update_ids)]
        oracle.assert_idle(self.control)

    def assert_swept(self) -> None:
        """What killed writers left aside is gone with the next publish into the table."""
        oracle.wait_until_left(self.destination, self.control)
        self.run("tokens-last")
        assert oracle.staging_tables(self.destination) == []


@pytest.fixture
def job(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_database: MakeDatabase,
    spark_server: SparkServer,
) -> Iterator[Job]:
    """A job on Spark Connect, or on a Spark of its own where a test asks for that."""
    session = getattr(request, "param", None) or f"remote({spark_server.url!r})"
    made = Job(
        tmp_path / "project",
        make_database("warehouse"),
        make_database("control"),
        session,
    )
    yield made
    made.close()


def test_killed_before_in_and_after_its_commit(job: Job) -> None:
    for point in ("stage.done", "publish.applied", "publish.committed"):
        job.die_at(point)
    assert job.run() == "already 0"
    job.assert_once("tokens-1")
    job.assert_swept()


@pytest.mark.chaos
@pytest.mark.parametrize("job", ["master('local-cluster[2,1,1024]')"], indirect=True)
def test_killed_on_executors_of_their_own(job: Job) -> None:
    process, _ = job.start_and_hold("publish.applied")
    process.kill_all()
    assert job.run() == f"done {ROWS}"
    job.assert_once("tokens-1")


def test_two_at_once_publish_once(job: Job) -> None:
    first, flag = job.start_and_hold("publish.applied")
    before = job.control_sessions()
    second = job.start()
    second.wait_for(lambda: job.control_sessions() > before, "the second to look for the holder")
    flag.unlink()
    ended = [first.wait(), second.wait()]
    assert [one.code for one in ended] == [0, 0], "\n".join(map(str, ended))
    assert sorted(one.out.strip() for one in ended) == ["already 0", f"done {ROWS}"]
    job.assert_once("tokens-1")


@pytest.mark.parametrize(
    "point",
    [
        "check.done",
        *(
            pytest.param(point, marks=pytest.mark.chaos)
            for point in ("fence.raised", "stage.done", "publish.applied")
        ),
    ],
)
def test_a_zombie_cannot_publish_after_its_replacement(job: Job, point: str) -> None:
    """A process that sleeps past its lease is replaced, and harmless when it wakes up."""
    zombie, flag = job.start_and_hold(point)
    zombie.stop()
    assert job.run() == f"done {ROWS}"
    job.assert_once("tokens-1")
    flag.unlink()
    zombie.resume()
    ended = zombie.wait()
    assert ended.code == 0, ended
    assert "writeback_stale_attempt" in ended.out + ended.err, ended
    assert ended.out.splitlines()[-1] == "already 0", ended
    job.assert_once("tokens-1")


@pytest.mark.chaos
@pytest.mark.parametrize("point", PASSED)
def test_killed_at_every_named_point(job: Job, point: str) -> None:
    job.die_at(point)
    job.run()
    job.die_at(point, "tokens-2")
    job.run("tokens-2")
    job.assert_once("tokens-1", "tokens-2")
    job.assert_swept()


@pytest.mark.chaos
def test_a_zombie_after_its_commit(job: Job) -> None:
    zombie, flag = job.start_and_hold("publish.committed")
    zombie.stop()
    assert job.run() == "already 0"
    flag.unlink()
    zombie.resume()
    ended = zombie.wait()
    assert ended.code == 0, ended
    job.assert_once("tokens-1")


@pytest.mark.chaos
@pytest.mark.parametrize("job", ["master('local[2]')"], indirect=True)
def test_killed_with_a_spark_of_its_own(job: Job) -> None:
    for point in (*IN_WORKERS, "publish.moved"):
        job.die_at(point)
    process, _ = job.start_and_hold("stage.done")
    process.kill_all()
    assert job.run() == f"done {ROWS}"
    job.assert_once("tokens-1")
    job.assert_swept()


@pytest.mark.chaos
def test_many_at_once_publish_once(job: Job) -> None:
    for update_id in ("tokens-1", "tokens-2"):
        processes = [job.start(update_id) for _ in range(4)]
        ended = [process.wait() for process in processes]
        assert [one.code for one in ended] == [0] * 4, "\n".join(map(str, ended))
        assert sorted(one.out.split()[0] for one in ended) == [*["already"] * 3, "done"]
    job.assert_once("tokens-1", "tokens-2")
