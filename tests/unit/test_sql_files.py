"""The SQL files: every statement named, described, complete and really used."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest
from psycopg import sql

import tidegate
from tidegate.postgres.queries import script, statement, statements

ROOT = Path(tidegate.__file__).parent
SCRIPTS = (
    "ledger/schema",
    "ledger/iceberg_schema",
    "ledger/iceberg_catalog",
    "jobs/schema",
    "events/create_monthly_partition",
    "events/event_moment",
)
ALL = sorted(
    "/".join((file.relative_to(ROOT).parts[0], *file.relative_to(ROOT).with_suffix("").parts[2:]))
    for file in ROOT.glob("*/sql/**/*.sql")
)
FILES = [name for name in ALL if not name.startswith(SCRIPTS)]
PLACES = {
    "schema",
    "markers",
    "type",
    "picked",
    "claiming",
    "finishing",
    "limit",
    "columns",
    "conditions",
    "known",
    "steps",
    "side",
    "before",
    "raw",
    "staged",
    "log",
    "copied",
}
NAMED = [(file, name) for file in FILES for name in statements(file)]


def test_every_file_holds_statements() -> None:
    assert FILES
    assert all(statements(file) for file in FILES)


def test_every_statement_says_in_a_line_what_it_is_for() -> None:
    for file, name in NAMED:
        first, second = statements(file)[name].splitlines()[:2]
        assert re.match(r"-- [A-Z].*[^ ]$", first), (file, name)
        assert not second.startswith("-- name"), (file, name)


def test_every_place_for_a_name_is_filled() -> None:
    for file, name in NAMED:
        places = {field for _, field, _, _ in Formatter().parse(statements(file)[name]) if field}
        assert places <= PLACES, (file, name)
        parts = {place: sql.Identifier(f"the {place}") for place in places}
        text = statement(file, name, **parts).as_string(None)
        assert "{" not in text, (file, name)
        assert all(f'"the {place}"' in text for place in places), (file, name)


def test_every_statement_is_used_by_its_own_name() -> None:
    code = "".join(text.read_text(encoding="utf-8") for text in ROOT.rglob("*.py"))
    assert [name for _, name in NAMED if f'"{name}"' not in code] == []


def test_a_percent_sign_in_a_name_is_not_taken_for_a_parameter() -> None:
    text = statement("ledger/fences", "get_fence", schema=sql.Identifier("100%s"))
    assert '"100%%s".fences' in text.as_string(None)


def test_scripts_are_complete_once_the_schema_is_filled_in() -> None:
    for file in ("ledger/schema", "jobs/schema"):
        text = sql.SQL(script(file)).format(schema=sql.Identifier("x")).as_string(None)
        assert "{" not in text


def test_an_unknown_file_or_statement_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        statements("ledger/nothing")
    with pytest.raises(KeyError):
        statement("ledger/fences", "nothing")
