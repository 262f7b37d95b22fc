"""Many syncs in one run: side by side, sharing Spark's jobs, each on its own when one fails."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from integration.conftest import MakePlace, MakeProject, Place
from tidegate.core.batch import StagedWrite
from tidegate.core.errors import LoadError, SourceError, UsageError
from tidegate.postgres.connection import Snapshot
from tidegate.spark import binary_copy, stager
from tidegate.spark.binary_copy import Copy, SnapshotReader, StagingPlace
from tidegate.spark.stager import Groups, Outcome


def declare(name: str, **others: object) -> dict[str, object]:
    source, target = f"shop:public.{name}", f"warehouse:raw.{name}"
    return {"name": name, "source": source, "target": target, "cursor": "n", **others}


def seed(place: Place, *names: str) -> None:
    for name in names:
        place.source.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int NOT NULL)",
            f"INSERT INTO {name} SELECT n, n FROM generate_series(1, 10) n",
        )


@pytest.mark.usefixtures("spark_copies")
def test_syncs_run_side_by_side_and_one_that_fails_harms_no_other(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[int] = []
    real = binary_copy.stage_copies

    def stage(spark: object, copies: list[Copy], *, tasks: int) -> object:
        jobs.append(len(copies))
        return real(spark, copies, tasks=tasks)  # type: ignore[arg-type]

    monkeypatch.setattr(stager, "stage_copies", stage)
    good = ("a", "c", "d", "e", "f")
    project, place = make_project(
        *(declare(name) for name in good),
        # Its rows fail while Spark reads them, in a job that others share.
        declare("harmed", key="id", null_cursor="exclude"),
        declare("gone"),
        declare("misspelt", cursor="nope"),
        databases=2,
    )
    seed(place, *good, "misspelt", "harmless")
    place.source.execute(
        "CREATE FUNCTION harm(int) RETURNS int LANGUAGE sql AS 'SELECT 1 / (5 - $1)'",
        "CREATE VIEW harmed AS SELECT id, harm(n) * 0 + n AS n FROM harmless WHERE n > 0",
    )
    ended: list[str] = []
    report = project.run_many(ended=lambda end: ended.append(end.sync.name), concurrency=8)
    assert [end.sync.name for end in report.ends] == list(project.syncs)
    assert sorted(ended) == sorted(project.syncs)
    errors = {end.sync.name: str(end.error) for end in report.failed}
    assert errors.keys() == {"harmed", "gone", "misspelt"}
    assert "public.gone does not exist" in errors["gone"]
    assert report.exit_code == 1
    assert report.rows == 50
    assert [place.target.value(f"SELECT count(*) FROM raw.{name}") for name in good] == [10] * 5
    assert sum(jobs) >= len(good)
    assert len(jobs) < sum(jobs)


def test_an_unknown_name_is_refused_before_anything_runs(make_place: MakePlace) -> None:
    place = make_place(declare("a"))
    seed(place, "a")
    with place.open() as project:
        with pytest.raises(UsageError, match="there is no sync b"):
            project.run_many(["a", "b"])
        with project.context.databases.lease("shop") as session:
            pass
    assert place.target.execute("SELECT FROM pg_namespace WHERE nspname = 'raw'") == []
    # A project is closed when its block ends.
    assert session.closed


def named(name: str) -> Copy:
    place = StagingPlace("", "", UUID(int=0), "", ())
    return Copy(SnapshotReader("", Snapshot(name), ("SELECT 1",)), place)


class Job:
    """A job that goes on only when it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.failure: Exception | None = None

    def run(self, copies: list[Copy]) -> list[Outcome]:
        names = [copy.reader.snapshot.name for copy in copies]
        self.groups.append(names)
        self.entered.release()
        self.go_on.acquire()
        if self.failure is not None:
            raise self.failure
        return [SourceError("bad") if name == "bad" else (StagedWrite(name, 1),) for name in names]


def start(groups: Groups, name: str, results: dict[str, object]) -> threading.Thread:
    def work() -> None:
        try:
            results[name] = groups.stage(named(name))
        except Exception as error:
            results[name] = error

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_all_who_wait_for_a_job_go_together_in_the_next() -> None:
    job = Job()
    groups = Groups(job.run)
    results: dict[str, object] = {}
    threads = [start(groups, "first", results)]
    job.entered.acquire()
    threads += [start(groups, name, results) for name in ("x", "bad", "y")]
    groups.wait_for(3)
    job.go_on.release()
    job.go_on.release()
    for thread in threads:
        thread.join(10)
    assert [sorted(group) for group in job.groups] == [["first"], ["bad", "x", "y"]]
    assert results["x"] == (StagedWrite("x", 1),)
    assert isinstance(results["bad"], SourceError)


def test_when_a_job_fails_all_of_its_group_are_told_and_the_next_go_on() -> None:
    job = Job()
    job.failure = LoadError("Spark failed")
    groups = Groups(job.run)
    results: dict[str, object] = {}
    job.go_on.release()
    start(groups, "x", results).join(10)
    assert isinstance(results["x"], LoadError)
    job.failure = None
    job.go_on.release()
    start(groups, "y", results).join(10)
    assert results["y"] == (StagedWrite("y", 1),)
