"""What `init` proposes for a table: the key and the cursor it most likely has."""

from __future__ import annotations

import pytest

from integration.conftest import Database
from tidegate.model.relation import Relation
from tidegate.postgres.catalog import describe_table
from tidegate.sources.proposal import Proposal, propose


def table(database: Database, columns: str) -> Proposal | str:
    """What is proposed for a table with these columns, or the reason against it."""
    database.execute(f"CREATE TABLE t ({columns})")
    with database.connect() as session:
        described = describe_table(session, Relation("public", "t"))
    assert described is not None
    found = propose(described, frozenset({"serial"}))
    return found if isinstance(found, Proposal) else found.reason


@pytest.mark.parametrize(
    ("columns", "cursor"),
    [
        ("id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz", "updated_at"),
        ("id int PRIMARY KEY, created_at timestamptz, last_modified date", "last_modified"),
        ("id int PRIMARY KEY, changed_at date, modified_at timestamptz", "modified_at"),
        ("id int PRIMARY KEY, mtime timestamp, update_time timestamptz", "update_time"),
        ('id int PRIMARY KEY, "updatedAt" timestamptz, birthday date', "updatedAt"),
        ('id int PRIMARY KEY, "ModifiedDate" timestamp(0), due_at timestamptz', "ModifiedDate"),
        ("id int PRIMARY KEY, updated_at bigint, created_at timestamptz", "updated_at"),
        ("id int PRIMARY KEY, inserted_at timestamptz, password_changed_at date", "inserted_at"),
        ("id int PRIMARY KEY, updated_at date, changed_at date UNIQUE", "changed_at"),
        ("serial bigint PRIMARY KEY, updated_at text", "serial"),
        ("serial bigint PRIMARY KEY, created_at timestamptz", "created_at"),
    ],
)
def test_the_cursor_is_the_column_that_most_likely_rises(
    database: Database, columns: str, cursor: str
) -> None:
    found = table(database, columns)
    assert isinstance(found, Proposal)
    assert found.cursor == cursor


@pytest.mark.parametrize(
    "columns",
    [
        "id int PRIMARY KEY, name text",
        "id int PRIMARY KEY, version int NOT NULL",
        "id int PRIMARY KEY, update_count int, expires_at timestamptz, birthday date",
        "serial bigint, b int, PRIMARY KEY (serial, b)",
        "id int PRIMARY KEY, updated_at time",
    ],
)
def test_what_does_not_rise_is_not_taken_for_a_cursor(database: Database, columns: str) -> None:
    found = table(database, columns)
    assert isinstance(found, str)
    assert "no column that looks like a cursor" in found


def test_what_its_owner_should_know_stands_beside_a_sync(database: Database) -> None:
    found = table(database, "id int PRIMARY KEY, created_at timestamptz")
    assert isinstance(found, Proposal)
    assert found.nullable
    assert [note.split(":")[0] for note in found.notes] == [
        "created_at stays when a row changes",
        "no index begins with created_at",
    ]


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("a int NOT NULL, b int NOT NULL, updated_at date, UNIQUE (a, b)", ("a", "b")),
        ("a int NOT NULL UNIQUE, b int NOT NULL, updated_at date, UNIQUE (b, a)", ("a",)),
        ("a int UNIQUE, updated_at date", None),
        ("a int, updated_at date", None),
    ],
)
def test_without_a_primary_key_a_unique_index_without_nulls_will_do(
    database: Database, columns: str, key: tuple[str, ...] | None
) -> None:
    found = table(database, columns)
    if key is None:
        assert found == "no primary key, and no unique index without NULLs"
    else:
        assert isinstance(found, Proposal)
        assert (found.key, found.is_primary_key) == (key, False)
