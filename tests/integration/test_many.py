"""Many syncs in one run: side by side, sharing Spark's jobs, each on its own when one fails."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from integration.conftest import MakeProject, Place
from tidegate.errors import LoadError, SourceError, UsageError
from tidegate.model.load import StagedWrite
from tidegate.postgres.connect import Snapshot
from tidegate.project import Project
from tidegate.spark import copying, grouping
from tidegate.spark.copying import Copy, SnapshotReader, StagingPlace
from tidegate.spark.grouping import Groups, Outcome

pytestmark = pytest.mark.usefixtures("spark_copies")

NAMES = ("a", "b", "c", "d", "e", "f")


def declare(name: str, **others: object) -> dict[str, object]:
    source, target = f"shop:public.{name}", f"warehouse:raw.{name}"
    return {"name": name, "source": source, "target": target, "cursor": "n", **others}


def seed(place: Place, *names: str) -> None:
    for name in names:
        place.source.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int NOT NULL)",
            f"INSERT INTO {name} SELECT n, n FROM generate_series(1, 10) n",
        )


def counts(place: Place, *names: str) -> list[int]:
    return [place.target.value(f"SELECT count(*) FROM raw.{name}") for name in names]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each Spark job staged."""
    found: list[int] = []
    real = copying.stage_copies

    def stage(spark: object, copies: list[Copy], *, tasks: int) -> object:
        found.append(len(copies))
        return real(spark, copies, tasks=tasks)  # type: ignore[arg-type]

    monkeypatch.setattr(grouping, "stage_copies", stage)
    return found


def test_several_syncs_run_side_by_side_and_share_spark_jobs(
    make_project: MakeProject, jobs: list[int]
) -> None:
    project, place = make_project(*(declare(name) for name in NAMES), databases=2)
    seed(place, *NAMES)
    ended: list[str] = []
    report = project.run_many(ended=lambda end: ended.append(end.sync.name), concurrency=6)
    assert report.exit_code == 0
    assert [end.sync.name for end in report.ends] == list(NAMES)
    assert sorted(ended) == list(NAMES)
    assert report.rows == 60
    assert counts(place, *NAMES) == [10] * 6
    assert sum(jobs) == 6
    assert len(jobs) < 6


def test_one_that_fails_does_not_stop_the_others(make_project: MakeProject) -> None:
    syncs = [declare("a"), declare("gone"), declare("c", cursor="nope"), declare("d")]
    project, place = make_project(*syncs)
    seed(place, "a", "c", "d")
    report = project.run_many()
    errors = {end.sync.name: str(end.error) for end in report.failed}
    assert set(errors) == {"gone", "c"}
    assert "public.gone does not exist" in errors["gone"]
    assert report.exit_code == 1
    assert counts(place, "a", "d") == [10, 10]


def test_a_batch_that_fails_does_not_harm_those_it_shares_a_job_with(
    make_project: MakeProject, jobs: list[int]
) -> None:
    names = ("a", "b", "c")
    project, place = make_project(*(declare(name) for name in names), databases=2)
    seed(place, *names)
    place.source.execute(
        "CREATE FUNCTION harm(int) RETURNS int LANGUAGE sql AS 'SELECT 1 / (5 - $1)'",
        "ALTER TABLE b RENAME TO b_table",
        "CREATE VIEW b AS SELECT id, harm(n) * 0 + n AS n FROM b_table WHERE n > 0",
    )
    text = (place.folder / "tidegate.toml").read_text()
    text = text.replace("[sync.b]\n", '[sync.b]\nkey = "id"\nnull_cursor = "exclude"\n')
    (place.folder / "tidegate.toml").write_text(text)
    report = place.open(project.context.spark).run_many()
    assert [end.sync.name for end in report.failed] == ["b"]
    assert counts(place, "a", "c") == [10, 10]


def test_an_unknown_name_is_refused_before_anything_runs(make_project: MakeProject) -> None:
    project, place = make_project(declare("a"))
    seed(place, "a")
    with pytest.raises(UsageError, match="there is no sync b"):
        project.run_many(["a", "b"])
    assert place.target.execute("SELECT FROM pg_namespace WHERE nspname = 'raw'") == []


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


def test_a_project_is_closed_when_its_block_ends(make_project: MakeProject) -> None:
    _, place = make_project(declare("a"))
    seed(place, "a")
    with Project.open(place.folder) as opened:
        assert list(opened.syncs) == ["a"]
        with opened.context.databases.lease("shop") as session:
            pass
    assert session.closed
