"""What a project's databases hold, to see that a refused run changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from integration.conftest import Place
from tidegate.core.errors import TidegateError

_RELATIONS = """
SELECT format('%I.%I', n.nspname, c.relname), c.relkind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'tidegate_control')
ORDER BY 1
"""
# An empty ledger may come into being, and a raised fence says nothing to a reader.
_OURS = ("tidegate.etl_state", "tidegate.table_updates", "tidegate.watermark_log")


def content(place: Place) -> set[tuple[Any, ...]]:
    """Every relation of a project's databases with its rows; of the ledger, only its rows."""
    found: set[tuple[Any, ...]] = set()
    for database in {place.source, place.target}:
        with database.connect() as session:
            for name, kind in session.execute(_RELATIONS).fetchall():
                ours = name.startswith("tidegate.")
                if not ours or "stg_" in name:
                    found.add((database.conninfo, name, kind))
                if kind == "r" and (not ours or name in _OURS):
                    rows = session.execute(f"SELECT t::text FROM {name} t").fetchall()
                    found |= {(database.conninfo, name, *row) for row in rows}
    return found


def seed(place: Place, *, rows: int = 5) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT i, 'n' || i, now() - interval '1 day' + i * interval '1 s'"
        f" FROM generate_series(1, {rows}) i",
    )


def refused(place: Place, run: Callable[[], Any], exit_code: int, *parts: str) -> None:
    """`run` fails with these words and this exit code, and leaves everything as it was."""
    before = content(place)
    with pytest.raises(TidegateError) as raised:
        run()
    for part in parts:
        assert part in str(raised.value)
    assert raised.value.exit_code == exit_code
    assert raised.value.hint
    assert content(place) == before
