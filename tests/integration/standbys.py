"""A real standby of a server that a test has started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from conftest import FAST
from tidegate.postgres.embedded import HOST, USER, EmbeddedServer


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
