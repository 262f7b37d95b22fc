"""Driver errors of administrative commands, turned into ours at the edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Say what was being done when the database refused."""
    import psycopg

    from tidegate.postgres.connect import translate

    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing) from error
