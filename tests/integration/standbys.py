"""Servers that a test starts for itself: a primary, its standby, a copy of its files."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from conftest import FAST
from integration.conftest import Place
from tidegate.postgres.embedded import HOST, USER, EmbeddedServer


@contextmanager
def own_server(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedServer]:
    """A server that is gone with its files at the end."""
    server = EmbeddedServer(folder, {**FAST, **(settings or {})})
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder)


@contextmanager
def standby_of(
    primary: EmbeddedServer, folder: Path, settings: Mapping[str, str]
) -> Iterator[EmbeddedServer]:
    """A standby that follows as long as it is needed; the primary is stopped to be copied."""
    primary.stop("fast")
    subprocess.run(["cp", "-a", str(primary.directory), str(folder)], check=True)
    (folder / "data" / "standby.signal").touch()
    primary.start()
    address = f"host={HOST} port={primary.port} user={USER} password={primary.password()}"
    follow = {"primary_conninfo": f"{address} application_name=reports"}
    server = EmbeddedServer(folder, {**FAST, **follow, **settings})
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")


def promote(server: EmbeddedServer) -> None:
    """Let the server begin a new timeline, as one does that was restored or has taken over."""
    server.stop("fast")
    (server.directory / "data" / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as session:
        session.execute("SELECT pg_promote()")


def copy_files(server: EmbeddedServer, backup: Path) -> None:
    server.stop("fast")
    subprocess.run(["cp", "-a", str(server.directory / "data"), str(backup)], check=True)
    server.start()


def put_back(server: EmbeddedServer, backup: Path) -> None:
    """Let the server go on with a copy of its files."""
    data = server.directory / "data"
    server.stop("fast")
    shutil.rmtree(data)
    backup.rename(data)
    server.start()


def point_at(place: Place, conninfo: str) -> None:
    """Let the project read another source, once it is opened again."""
    file = place.folder / "tidegate.toml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    shop = f"shop = {json.dumps(conninfo)}\n"
    text = "".join(shop if line.startswith("shop = ") else line for line in lines)
    file.write_text(text, encoding="utf-8")
