"""Projects and their databases that all tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from databases import Databases
from integration.conftest import MakePlace
from tidegate.postgres.embedded import EmbeddedServer


@contextmanager
def shared_places(server: EmbeddedServer, kept: Databases, folder: Path) -> Iterator[MakePlace]:
    """A maker of places whose databases are given back in the end."""
    names: list[str] = []

    def make(name_hint: str = "db", *, control: bool = False) -> str:
        names.append(kept.make(name_hint, control=control))
        return server.conninfo(names[-1])

    try:
        yield MakePlace(make, folder)
    finally:
        kept.give_back(*names)
