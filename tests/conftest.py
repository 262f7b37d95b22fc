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
