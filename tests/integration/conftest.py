"""What the integration tests share: one warm Spark per process, and projects on real databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from conftest import MakeDatabase
from databases import Databases
from few_rows import FEW_ROWS
from in_process import InProcess, NoSpark
from projects import toml
from tidegate.config import SparkSettings
from tidegate.iceberg.jars import lake_conf
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

Rows = list[tuple[Any, ...]]


class WarmSpark(SparkSessions):
    """The Spark of a test process. Rows that nothing transforms are copied without it, by the very
    code of its tasks, unless `copies` says that this is the matter."""

    copies = False

    def parallelism(self) -> int:
        return 2


@pytest.fixture(scope="session")
def warm_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSpark]:
    """It starts with the first test that needs it."""
    sessions = WarmSpark(
        SparkSettings(master="local[2]", conf=FEW_ROWS),
        tmp_path_factory.mktemp("spark"),
        # There is one Spark for all tests, and some of them have a lake.
        lambda: lake_conf({}, postgres=True),
    )
    yield sessions
    sessions.stop()


@pytest.fixture
def spark_copies(warm_spark: WarmSpark) -> Iterator[None]:
    """Every row of the test travels through Spark."""
    warm_spark.copies = True
    yield
    warm_spark.copies = False


@dataclass(frozen=True, slots=True)
class Database:
    """A real database, with a short way to run SQL in it."""

    conninfo: str

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo, autocommit=True, **options)

    def execute(self, *statements: str | sql.Composable) -> Rows:
        """Run statements one after the other; the rows of the last one are returned."""
        with self.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for text in statements:
                cursor = connection.execute(text)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str | sql.Composable) -> Any:
        return self.execute(statement)[0][0]


@dataclass(frozen=True, slots=True)
class Place:
    """The databases of one project; the same one three times where it has only one."""

    source: Database
    target: Database
    control: Database
    folder: Path

    def open(self, spark: SparkSessions | None = None) -> Project:
        project = Project.open(self.folder)
        if spark is not None:
            project.context.spark = spark
            if not getattr(spark, "copies", True):
                project.context.stager = InProcess(lambda: spark)
        return project


class MakePlace:
    """Makes a project's folder and databases."""

    def __init__(self, make_database: MakeDatabase, folder: Path) -> None:
        self._make_database = make_database
        self._folder = folder
        self._count = 0

    def __call__(
        self,
        *syncs: Mapping[str, Any],
        databases: int = 1,
        name: str = "shop",
        beside: Place | None = None,
        pipelines: str | None = None,
        installed: bool = True,
        lake: Mapping[str, Any] | None = None,
        **sections: Mapping[str, Any],
    ) -> Place:
        """A project with these syncs, on its own databases or on those of another project.

        Its control plane is there already, unless it is not `installed`. With `lake` it has a
        connection of that name, which says this.
        """
        self._count += 1
        folder = self._folder / f"{name}_{self._count}"
        folder.mkdir(parents=True)
        if beside is None:
            made = [
                Database(self._make_database(f"{name}_{one}", control=control))
                for one in range(databases)
                for control in [installed and one == 2 % databases]
            ]
            source, target, control = (made * 3)[0], made[1 % databases], made[2 % databases]
        else:
            source, target, control = beside.source, beside.target, beside.control
        place = Place(source, target, control, folder)
        connections: dict[str, Any] = {"shop": source.conninfo, "warehouse": target.conninfo}
        if lake is not None:
            connections["lake"] = lake
        document: dict[str, Any] = {
            "project": {"name": name, "control": control.conninfo},
            "connections": connections,
            "worker": {"lock_timeout": "2s"},
            **sections,
        }
        for sync in syncs:
            values = dict(sync)
            document[f"sync.{values.pop('name', 'orders')}"] = values
        (folder / "tidegate.toml").write_text(toml(document), encoding="utf-8")
        if pipelines is not None:
            (folder / "pipelines.py").write_text(pipelines, encoding="utf-8")
        return place


@pytest.fixture
def make_place(make_database: MakeDatabase, tmp_path: Path) -> MakePlace:
    """A maker of project folders with fresh databases, not opened yet."""
    return MakePlace(make_database, tmp_path)


MakeProject = Make = Callable[..., tuple[Project, Place]]


@pytest.fixture
def make_project(make_place: MakePlace, warm_spark: SparkSessions) -> MakeProject:
    """A maker of opened projects that share the warm Spark."""

    def make(*syncs: Mapping[str, Any], **options: Any) -> tuple[Project, Place]:
        place = make_place(*syncs, **options)
        return place.open(warm_spark), place

    return make


@pytest.fixture(scope="module")
def places(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakePlace]:
    """A maker of projects whose databases live as long as the module's tests."""
    with kept_databases.lend() as lent:
        yield MakePlace(lent, tmp_path_factory.mktemp("places"))


def without_spark(project: Project) -> Project:
    """The project with its batches staged in this process."""
    settings = project.settings
    project.context.spark = NoSpark(settings.spark, settings.state_directory)
    project.context.stager = InProcess(lambda: project.context.spark)
    return project


def open_without_spark(place: Place) -> Project:
    return without_spark(place.open())


@pytest.fixture
def make(make_place: MakePlace) -> Make:
    """A maker of opened projects that load without Spark."""

    def made(*syncs: Mapping[str, Any], **options: Any) -> tuple[Project, Place]:
        place = make_place(*syncs, **options)
        return open_without_spark(place), place

    return made


def add_checks(place: Place, reject_limit: str = "100%", **checks: str) -> None:
    """Declare checks for the sync of a project, which must be opened again after this."""
    lines = [f'reject_limit = "{reject_limit}"', "[sync.orders.checks]"]
    lines += [f'{name} = "{condition}"' for name, condition in checks.items()]
    file = place.folder / "tidegate.toml"
    file.write_text(file.read_text().rstrip() + "\n" + "\n".join(lines) + "\n")


@pytest.fixture
def database(make_database: MakeDatabase) -> Database:
    """One empty database."""
    return Database(make_database("db"))
