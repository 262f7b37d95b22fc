"""`tidegate init` over tables with odd names: what is written reads back exactly."""

from __future__ import annotations

from pathlib import Path

from psycopg import sql

from integration.commands import DONE, tidegate
from integration.conftest import Database
from tidegate.model.relation import Endpoint, Relation
from tidegate.pipeline.declaration import resolve_source
from tidegate.project import Project


def init(folder: Path, database: Database) -> list[dict[str, str]]:
    """Make a project from the database; what was left out is returned."""
    done = tidegate(folder, "init", "--json", "--source", database.conninfo)
    assert done.code == DONE, done.said
    left_out: list[dict[str, str]] = done.document["left_out"]
    return left_out


ODD = [
    "Order Items",
    'we"ird',
    "a.b",
    "select",
    "Größe",
    "日本",
    "x'; DROP TABLE y; --",
    "back\\slash",
    "hash#tag",
    "${HOME}",
    "$${HOME}",
    "{table}",
    "*",
    "100%s",
    "]\t[",
    " padded ",
    'x"]\n[sync.evil]\nsource = "a:b',
]


def test_odd_names_are_written_so_that_they_read_back_exactly(
    tmp_path: Path, database: Database
) -> None:
    for name in ODD:
        create = sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {} timestamptz NOT NULL)")
        database.execute(create.format(sql.Identifier(name), sql.Identifier("updated_at")))
    left_out = init(tmp_path, database)
    spelled = {name for name in ODD if "\n" not in name and "\t" not in name}
    project = Project.open(tmp_path)
    assert {sync.source.relation.name for sync in project.syncs.values()} == spelled
    assert {sync.target.relation.name for sync in project.syncs.values()} == spelled
    assert "evil" not in project.syncs
    assert len(left_out) == len(ODD) - len(spelled)
    with database.connect() as session:
        for sync in project.syncs.values():
            assert resolve_source(session, sync).cursor.name == "updated_at"


def test_odd_columns_are_written_so_that_they_read_back_exactly(
    tmp_path: Path, database: Database
) -> None:
    database.execute(
        'CREATE TABLE one ("we""ird ${HOME}" int NOT NULL UNIQUE, "Updated At" date NOT NULL)'
    )
    init(tmp_path, database)
    sync = Project.open(tmp_path).sync("one")
    assert (sync.key, sync.cursor) == (('we"ird ${HOME}',), "Updated At")
    with database.connect() as session:
        resolve_source(session, sync)


def test_tables_that_are_called_alike_get_names_of_their_own(
    tmp_path: Path, database: Database
) -> None:
    for schema in ("sales", "Sales", "9"):
        database.execute(f'CREATE SCHEMA "{schema}"')
        for name in ("orders", "Orders", "Items"):
            database.execute(
                f'CREATE TABLE "{schema}"."{name}" (id int PRIMARY KEY, updated_at date NOT NULL)'
            )
    long = "x" * 63
    database.execute(
        f"CREATE TABLE sales.{long} (id int PRIMARY KEY, updated_at date NOT NULL)",
        f'CREATE TABLE "9".{long} (id int PRIMARY KEY, updated_at date NOT NULL)',
    )
    init(tmp_path, database)
    syncs = Project.open(tmp_path).syncs
    assert len(syncs) == 11
    assert len({name.lower() for name in syncs}) == 11
    assert len({sync.target for sync in syncs.values()}) == 11
    assert Endpoint("warehouse", Relation("Sales", "Items")) in {
        sync.target for sync in syncs.values()
    }
