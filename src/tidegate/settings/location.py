"""Where a Postgres database is: "embedded", "embedded:NAME", a URL or a libpq string."""

from __future__ import annotations

import re
from typing import NamedTuple

EXPECTED = (
    '"embedded", "embedded:NAME", "postgresql://user@host/dbname" or '
    '"host=... dbname=..." ("service=..." too)'
)
_DATABASE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_KEYWORDS = re.compile(r"\s*[a-z_]+\s*=")


class Location(NamedTuple):
    """Either a database of the embedded server or a connection string."""

    embedded_database: str | None
    conninfo: str | None


def parse_location(text: str) -> Location:
    """Return what `text` points at; the ValueError never repeats it.

    >>> parse_location("embedded").embedded_database
    'tidegate'
    """
    text = text.strip()
    if text == "embedded":
        return Location("tidegate", None)
    if text.startswith("embedded:"):
        database = text.removeprefix("embedded:")
        if not _DATABASE.fullmatch(database):
            raise ValueError(
                '"embedded:NAME" where NAME is 1 to 63 letters, digits, dashes and underscores'
            )
        return Location(database, None)
    if "\0" not in text and (
        text.startswith(("postgresql://", "postgres://")) or _KEYWORDS.match(text)
    ):
        return Location(None, text)
    raise ValueError(EXPECTED + _advice(text))


def _advice(text: str) -> str:
    if text.startswith("jdbc:"):
        return "; leave out jdbc: and put user and password before the host"
    if re.match(r"postgres(ql)?\+\w+://", text):
        return "; leave out the driver, postgresql:// is enough"
    return "; it is empty" if not text else ""
