"""What `init` proposes for a table: the key and the cursor it most likely has."""

from __future__ import annotations

from integration.conftest import Database
from tidegate.core.relation import Relation
from tidegate.load.proposals import Proposal, propose
from tidegate.postgres.catalog import describe_table

ID = "id int PRIMARY KEY, "
CURSORS = {
    ID + "created_at timestamptz, updated_at timestamptz": "updated_at",
    ID + "created_at timestamptz, last_modified date": "last_modified",
    ID + "changed_at date, modified_at timestamptz": "modified_at",
    ID + "mtime timestamp, update_time timestamptz": "update_time",
    ID + '"updatedAt" timestamptz, birthday date': "updatedAt",
    ID + '"ModifiedDate" timestamp(0), due_at timestamptz': "ModifiedDate",
    ID + "updated_at bigint, created_at timestamptz": "updated_at",
    ID + "inserted_at timestamptz, password_changed_at date": "inserted_at",
    ID + "updated_at date, changed_at date UNIQUE": "changed_at",
    "serial bigint PRIMARY KEY, updated_at text": "serial",
    "serial bigint PRIMARY KEY, created_at timestamptz": "created_at",
    # What does not rise is not taken for a cursor.
    ID + "name text": None,
    ID + "version int NOT NULL": None,
    ID + "update_count int, expires_at timestamptz, birthday date": None,
    "serial bigint, b int, PRIMARY KEY (serial, b)": None,
    ID + "updated_at time": None,
}
# Without a primary key a unique index without NULLs will do.
KEYS = {
    "a int NOT NULL, b int NOT NULL, updated_at date, UNIQUE (a, b)": ("a", "b"),
    "a int NOT NULL UNIQUE, b int NOT NULL, updated_at date, UNIQUE (b, a)": ("a",),
    "a int UNIQUE, updated_at date": None,
    "a int, updated_at date": None,
}


def table(database: Database, columns: str) -> Proposal | str:
    """What is proposed for a table with these columns, or the reason against it."""
    database.execute("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns})")
    with database.connect() as session:
        described = describe_table(session, Relation("public", "t"))
    assert described is not None
    found = propose(described, frozenset({"serial"}))
    return found if isinstance(found, Proposal) else found.reason


def test_the_cursor_is_the_column_that_most_likely_rises(database: Database) -> None:
    for columns, cursor in CURSORS.items():
        found = table(database, columns)
        if cursor is None:
            assert isinstance(found, str), columns
            assert "no column that looks like a cursor" in found
        else:
            assert isinstance(found, Proposal), columns
            assert found.cursor == cursor


def test_the_key_and_what_the_owner_should_know_stand_beside_a_sync(database: Database) -> None:
    for columns, key in KEYS.items():
        found = table(database, columns)
        if key is None:
            assert found == "no primary key, and no unique index without NULLs", columns
        else:
            assert isinstance(found, Proposal), columns
            assert (found.key, found.is_primary_key) == (key, False)
    found = table(database, ID + "created_at timestamptz")
    assert isinstance(found, Proposal)
    assert found.nullable
    assert [note.split(":")[0] for note in found.notes] == [
        "created_at stays when a row changes",
        "no index begins with created_at",
    ]
