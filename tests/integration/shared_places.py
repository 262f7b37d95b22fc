"""Projects and their databases that all tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from databases import Databases
from integration.conftest import MakePlace


@contextmanager
def shared_places(kept: Databases, folder: Path) -> Iterator[MakePlace]:
    """A maker of places whose databases are given back in the end."""
    with kept.lend() as make:
        yield MakePlace(make, folder)
