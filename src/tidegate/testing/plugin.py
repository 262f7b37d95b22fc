"""The pytest plugin: fixtures only, and nothing heavy until one of them is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidegate.postgres.embedded import EmbeddedServer
    from tidegate.testing.sandbox import SandboxProject

INI = "tidegate_project"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a test suite outside its project say where that is."""
    parser.addini(INI, "folder of the Tidegate project; by default the nearest above each test")


@pytest.fixture(scope="session")
def tidegate_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """An embedded PostgreSQL for this test session, gone with its data in the end."""
    import shutil

    from tidegate.postgres.embedded import EmbeddedServer

    # A test server need not outlive a power failure.
    fast = {"fsync": "off", "full_page_writes": "off"}
    server = EmbeddedServer(tmp_path_factory.mktemp("tidegate") / "postgres", fast)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(server.directory)


@pytest.fixture(scope="session")
def _tidegate_sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Any]]:
    """The Spark of each kind that was used, kept warm from test to test."""
    sparks: dict[Any, Any] = {}
    yield sparks
    for sessions in sparks.values():
        sessions.stop()


@pytest.fixture
def tidegate_project(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tidegate_server: EmbeddedServer,
    _tidegate_sparks: dict[Any, Any],
) -> Iterator[SandboxProject]:
    """Your project, copied, with every connection replaced by a fresh, empty one."""
    from tidegate.config import find_project
    from tidegate.spark.session import SparkSessions
    from tidegate.testing.sandbox import FreshDatabases, SandboxProject

    chosen = request.config.getini(INI)
    base = request.config.inipath.parent if request.config.inipath else request.config.rootpath
    root = find_project(base / chosen if chosen else request.path.parent)
    databases = FreshDatabases(tidegate_server)
    try:
        project = SandboxProject.copy(root, tmp_path / "project", databases)
        spark, conf = project.settings.spark, project.context.lake_conf
        kind = repr((spark, conf()))
        if kind not in _tidegate_sparks:
            folder = tidegate_server.directory.parent / f"spark-{len(_tidegate_sparks)}"
            _tidegate_sparks[kind] = SparkSessions(spark, folder, conf)
        project.share_spark(_tidegate_sparks[kind])
        with project:
            yield project
    finally:
        databases.close()
