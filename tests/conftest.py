"""What all tests share: a PostgreSQL server per test process, and databases of their own."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Protocol

import psycopg
import pytest
from psycopg import sql

from tidegate.postgres.embedded import EmbeddedServer

# A test server need not outlive a power failure. It must outlive its own crash, so commits stay
# synchronous: without that, a killed server forgets what it had confirmed.
FAST = {"fsync": "off", "full_page_writes": "off"}


# Files that take minutes go first, so that no worker is left alone with one at the end.
LONGEST = (
    "test_examples",
    "test_prove",
    "test_named_points",
    "test_modes_killed",
    "test_worker_zombies",
    "test_worker_kills",
    "test_worker_signals",
    "test_type_properties",
    "test_scale_out",
    "test_testing_kit",
    "test_random_kills",
    "test_wheel",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by how long they take, as far as that is known."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


class MakeDatabase(Protocol):
    """Makes an empty database and returns its conninfo."""

    def __call__(self, name_hint: str = "db") -> str: ...


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A running server for this test process, gone with its data at the end."""
    embedded = EmbeddedServer(tmp_path_factory.mktemp("server") / "postgres", FAST)
    embedded.start()
    yield embedded
    embedded.stop("immediate")
    shutil.rmtree(embedded.directory)


@pytest.fixture
def make_database(server: EmbeddedServer) -> Iterator[MakeDatabase]:
    """A maker of fresh databases, which are dropped after the test."""
    names: list[str] = []

    def make(name_hint: str = "db") -> str:
        hint = re.sub(r"[^a-z0-9_]", "_", name_hint.lower())[:40]
        name = f"{hint}_{uuid.uuid4().hex[:12]}"
        names.append(name)
        server.ensure_database(name)
        return server.conninfo(name)

    yield make
    # A test may have crashed the server; the next one needs it.
    server.start()
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        for name in names:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))
