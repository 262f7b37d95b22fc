"""What all tests share: a PostgreSQL server per test process, and databases of their own."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import psycopg
import pytest
from _pytest.terminal import TerminalReporter
from psycopg import sql

import chaos_seeds  # noqa: F401 - no process of a test sees TIDEGATE_SEED
import java_archive
from databases import Databases
from tidegate.postgres.embedded import USER, EmbeddedServer
from warm_python import WarmPython

# A test server need not outlive a power failure. It must outlive its own crash, so commits stay
# synchronous: without that, a killed server forgets what it had confirmed. Its passwords need not
# outlive a guess either: hashing one for each of many thousand sessions takes minutes.
FAST = {"fsync": "off", "full_page_writes": "off", "scram_iterations": "1"}
_SLOWEST = 10

# Luigi has no release for a newer Python yet.
collect_ignore = (
    ["unit/test_luigi_ids.py", "integration/test_luigi.py"] if sys.version_info >= (3, 14) else []
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: who is done takes from what another has left, and that should be short."""
    order = ("acceptance", "integration", "unit")
    items.sort(key=lambda item: [folder not in item.path.parts for folder in order])


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """The files that took longest, for whoever adds to them."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += round(report.duration, 1)  # type: ignore[assignment]
    if len(seconds) > _SLOWEST:
        terminalreporter.section("slowest files")
        for name, took in seconds.most_common(_SLOWEST):
            terminalreporter.write_line(f"{took:7.1f} s  {name}")


class MakeDatabase(Protocol):
    """Makes a database, empty or with a control plane, and returns its conninfo."""

    def __call__(self, name_hint: str = "db", *, control: bool = False) -> str: ...


@pytest.fixture(scope="session", autouse=True)
def quick_java(request: pytest.FixtureRequest) -> None:
    """Every Spark that a test starts starts quickly, unless Java is told something else."""
    if "JDK_JAVA_OPTIONS" in os.environ:
        return
    os.environ["JDK_JAVA_OPTIONS"] = java_archive.QUICK
    # Tests of units start no Spark, and should not wait for the first archive.
    if any("unit" not in item.path.parts for item in request.session.items):
        os.environ.update(java_archive.environment(java_archive.FOLDER))


@pytest.fixture(scope="session")
def warm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """The daemons of Spark's workers for this test process, started when first asked for."""
    python = WarmPython(tmp_path_factory.mktemp("python"))
    yield python
    python.stop()


@pytest.fixture
def warm_workers(warm_daemons: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many Sparks are started one after the other, their workers are forked quickly."""
    warm_daemons.start()
    monkeypatch.setenv("PYSPARK_PYTHON", str(warm_daemons.path))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A running server for this test process, gone with its data at the end."""
    embedded = EmbeddedServer(tmp_path_factory.mktemp("server") / "postgres", FAST)
    embedded.start()
    with psycopg.connect(embedded.conninfo()) as connection:
        connection.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(USER), embedded.password())
        )
    yield embedded
    embedded.stop("immediate")
    shutil.rmtree(embedded.directory)


@pytest.fixture(scope="session")
def kept_databases(server: EmbeddedServer) -> Databases:
    return Databases(server)


@pytest.fixture
def make_database(kept_databases: Databases) -> Iterator[MakeDatabase]:
    """A maker of fresh databases, which are given back after the test."""
    with kept_databases.lend() as make:
        yield make
