"""Bad input: the message names the thing and the fix, the exit code fits, nothing is changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from integration.conftest import Database, MakePlace, MakeProject, Place
from integration.here import tidegate
from integration.orders import ORDERS
from tidegate.core.errors import TidegateError
from tidegate.project import Project

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


# Beside orders: a table without a key, and one whose cursor may be NULL and is so once.
SOURCES = (
    "UPDATE orders SET name = 'n' WHERE id < 3",
    "CREATE TABLE bare (id int, updated_at timestamptz NOT NULL)",
    "CREATE TABLE gaps (id int PRIMARY KEY, updated_at timestamptz)",
    "INSERT INTO gaps VALUES (1, now()), (2, NULL)",
)
TARGETS = {
    "number": "TABLE {} (id int PRIMARY KEY, name int, updated_at timestamptz)",
    "loose": "TABLE {} (id int, name text, updated_at timestamptz)",
    "narrow": "TABLE {} (id int PRIMARY KEY)",
    "sequence": "SEQUENCE {}",
    "view": "VIEW {} AS SELECT 1 AS id",
}


@pytest.fixture(scope="module")
def scene(places: MakePlace) -> Place:
    """Databases that no refused run changes, so that all of them meet here."""
    place = places(ORDERS, databases=3)
    seed(place)
    place.source.execute(*SOURCES)
    place.target.execute("CREATE SCHEMA raw")
    for name, what in TARGETS.items():
        place.target.execute(f"CREATE {what.format(f'raw.{name}')}")
    return place


def connect_as(place: Place, which: str, conninfo: str) -> None:
    """Let a connection of the project lead elsewhere."""
    file = place.folder / "tidegate.toml"
    lines = file.read_text(encoding="utf-8").splitlines()
    changed = [
        f"{which} = {json.dumps(conninfo)}" if line.startswith(f"{which} = ") else line
        for line in lines
    ]
    assert changed != lines
    file.write_text("\n".join(changed) + "\n", encoding="utf-8")


# What is declared wrongly, and the words that say so and how to mend it.
DECLARATIONS = [
    ({"source": "shp:public.orders"}, 'there is no connection "shp" … did you mean … shop'),
    ({"target": "lake:raw.orders"}, 'there is no connection "lake" … declares: shop, warehouse'),
    ({"cursor": "updatedat"}, "updatedat does not exist in public.orders … mean updated_at?"),
    ({"key": ["idd"]}, "key column idd does not exist in public.orders … did you mean id?"),
    ({"cursor": "name"}, "cursor name is of type text … a cursor is a timestamp"),
    ({"cursor": None}, "no cursor is declared … id, updated_at"),
    ({"source": "shop:gaps"}, 'may be NULL … null_cursor = "raise", "include" or "exclude"'),
    ({"source": "shop:bare"}, 'has no primary key, and merge needs a key … key = ["id"]'),
    ({"mode": "replace"}, "cursor = 'updated_at' means nothing … remove the cursor"),
    (
        {"mode": "append", "lookback": "1 hour"},
        "append without a key would add the rows of its lookback again … declare a key",
    ),
    ({"columns": ["name", "updated_at"]}, "key column id is left out of the columns"),
    ({"columns": ["id", "nmae"]}, "column nmae does not exist … did you mean name?"),
    (
        {"columns": ["id", "name"], "duplicates": "newest"},
        "cursor updated_at is left out of the columns … tells older rows from newer",
    ),
    ({"where": "nmae = 'n'"}, "its where cannot be read … nmae"),
    ({"where": "id = = 3"}, "its where cannot be read … syntax error"),
    ({"query": "SELECT id, id FROM orders"}, "columns that cannot be told apart: id"),
    ({"query": "DELETE FROM orders RETURNING *"}, "cannot be read … it must be a single SELECT"),
    ({"query": "SELECT * FROM orders"}, "the query has no primary key, and merge needs a key"),
    (
        {"query": "SELECT * FROM orders", "key": "id"},
        'cursor updated_at of the query may be NULL … null_cursor = "raise"',
    ),
    ({"lookback": 5}, 'lookback = 5 for a cursor of time … lookback = "10 minutes"'),
    ({"target": "shop:public.orders"}, "source and target are the same table"),
    ({"key": ["name"]}, "the key (name) of public.orders is not unique: one occurs 2"),
    ({"target": "warehouse:a.b.c"}, "'a.b.c' is not a table name"),
    ({"target": f"warehouse:{'x' * 64}"}, "longer than 63 bytes"),
]
# What is declared well, but is not so in the databases.
FOUND = [
    ({"source": "shop:ordres"}, "table public.ordres does not exist in … mean public.orders"),
    ({"source": "shop:other.orders"}, "other.orders does not exist … did you mean public.orders"),
    (
        {"source": "shop:gaps", "null_cursor": "raise"},
        "1 rows of public.gaps have no updated_at … fill them in",
    ),
    ({"target": "warehouse:raw.number"}, "column name … choose another target"),
    ({"target": "warehouse:raw.loose"}, "no unique index on (id) … choose another target"),
    ({"target": "warehouse:raw.narrow"}, "no column name … ADD COLUMN … choose another target"),
    ({"target": "warehouse:raw.sequence"}, "sequence is not a table … choose another target"),
    ({"target": "warehouse:raw.view"}, "raw.view is not a table … choose another target"),
]


def said(project: Project, **options: Any) -> TidegateError:
    with pytest.raises(TidegateError) as raised:
        project.run("orders", **options)
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize(("cases", "exit_code"), [(DECLARATIONS, 2), (FOUND, 1)])
def test_a_wrong_declaration_is_refused_before_anything_is_written(
    places: MakePlace, scene: Place, cases: list[tuple[dict[str, Any], str]], exit_code: int
) -> None:
    before = content(scene)
    for change, words in cases:
        source = {"source": "shop"} if "query" in change else {}
        with places({**ORDERS, **source, **change}, beside=scene).open() as project:
            for full_refresh in (False, True) if "null_cursor" in change else (False,):
                error = said(project, full_refresh=full_refresh)
                assert error.exit_code == exit_code, change
                for part in words.split(" … "):
                    assert part in str(error), change
    assert content(scene) == before


def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_a_source_that_cannot_be_reached_is_named_without_its_password(
    places: MakePlace, scene: Place
) -> None:
    before = content(scene)
    for change, words in (
        ({"port": closed_port()}, 'connection "shop" … refused … is the server running'),
        ({"password": "wrong"}, "password authentication failed … check the user and password"),
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist … create that database'),
        ({"user": "nobody_known", "password": "wrong"}, "nobody_known"),
    ):
        place = places(ORDERS, beside=scene)
        connect_as(place, "shop", make_conninfo(scene.source.conninfo, **change))
        with place.open() as project:
            error = said(project)
        assert error.exit_code == 1
        for part in words.split(" … "):
            assert part in str(error), change
        assert "wrong" not in str(error)
    assert content(scene) == before


def test_the_command_says_what_is_wrong_and_ends_with_2(places: MakePlace, scene: Place) -> None:
    before = content(scene)
    place = places(ORDERS, beside=scene)
    for arguments, words in (
        ("order", "there is no sync order … fix: did you mean orders?"),
        ("", "error: which sync? … orders, or --all"),
        ("orders --all", "error: --all and names were both given"),
        ("orders --max-batches 0", "--max-batches"),
        ("orders --bogus", "--bogus"),
    ):
        done = tidegate(place.folder, "run", *arguments.split())
        assert done.code == 2, done.said
        for part in words.split(" … "):
            assert part in done.err
    assert content(scene) == before


def test_the_exit_code_tells_a_wrong_world_from_a_wrong_declaration(
    places: MakePlace, scene: Place, tmp_path: Path
) -> None:
    place = places(
        {**ORDERS, "source": "shop:public.ordres"},
        {**ORDERS, "name": "b", "key": ["x"], "target": "warehouse:raw.b"},
        beside=scene,
    )
    for folder, name, code, message in (
        (place.folder, "orders", 1, "error: orders: table public.ordres does not exist"),
        (place.folder, "b", 2, "error: b: sync b: key column x does not exist"),
        # Outside a project the command says how to make one.
        (tmp_path, "orders", 2, "tidegate.toml"),
    ):
        done = tidegate(folder, "run", name)
        assert done.code == code, done.said
        assert message in done.err
        assert "fix:" in done.err


def test_missing_rights_are_said_with_the_statement_that_gives_them(make_place: MakePlace) -> None:
    place = make_place(ORDERS, databases=3)
    seed(place)
    role = f"plain_{uuid4().hex[:10]}"
    place.target.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")

    def limited(database: Database) -> str:
        return make_conninfo(database.conninfo, user=role, password="secret")

    def says(*parts: str) -> None:
        refused(place, lambda: place.open().run("orders"), 1, *parts)

    try:
        connect_as(place, "warehouse", limited(place.target))
        says("may not create the ledger (schema tidegate)", "CREATE SCHEMA tidegate AUTHORIZATION")
        connect_as(place, "warehouse", place.target.conninfo)
        connect_as(place, "shop", limited(place.source))
        says("may not read public.orders", f"GRANT SELECT ON public.orders TO {role}")
        place.source.execute(f"GRANT SELECT (id, updated_at) ON orders TO {role}")
        says("may not read name of public.orders", f"GRANT SELECT ON public.orders TO {role}")
        place.source.execute(f"REVOKE USAGE ON SCHEMA public FROM {role}, PUBLIC")
        says("may not use the schema of public.orders", f"GRANT USAGE ON SCHEMA public TO {role}")
    finally:
        for database in (place.source, place.target, place.control):
            database.execute(f"DROP OWNED BY {role}")
        place.target.execute(f"DROP ROLE {role}")


def fill_disk_of_staging(database: Database) -> None:
    """The third row that is copied into any new staging table finds the disk full."""
    database.execute(
        "CREATE FUNCTION public.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id >= 103 THEN RAISE 'could not extend file: No space left on device'"
        " USING ERRCODE = '53100'; END IF; RETURN NEW; END $$",
        "CREATE FUNCTION public.arm() RETURNS event_trigger LANGUAGE plpgsql AS $$"
        " DECLARE made record; BEGIN"
        " FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP"
        " IF made.object_identity LIKE '%stg_%' THEN"
        " EXECUTE format('CREATE TRIGGER full_disk BEFORE INSERT ON %s FOR EACH ROW"
        " EXECUTE FUNCTION public.full_disk()', made.object_identity);"
        " END IF; END LOOP; END $$",
        "CREATE EVENT TRIGGER arm ON ddl_command_end WHEN TAG IN ('CREATE TABLE')"
        " EXECUTE FUNCTION public.arm()",
    )


TRANSFORMED = """
import tidegate as tg

@tg.sync(source="shop:public.orders", target="warehouse:raw.orders", cursor="updated_at")
def orders(df):
    return df
"""


@pytest.mark.parametrize("transformed", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_a_full_disk_leaves_everything_as_it_was(
    make_project: MakeProject, transformed: bool
) -> None:
    syncs = () if transformed else (ORDERS,)
    pipelines = TRANSFORMED if transformed else None
    project, place = make_project(*syncs, databases=2, pipelines=pipelines)
    seed(place)
    project.run("orders")
    fill_disk_of_staging(place.target)
    place.source.execute("INSERT INTO orders SELECT i, 'x', now() FROM generate_series(101, 110) i")
    refused(
        place,
        lambda: project.run("orders"),
        1,
        "staging into the destination: the database server's disk is full",
        "No space left on device",
        "free space there and run again; nothing was published",
    )
    place.target.execute(
        "DROP EVENT TRIGGER arm",
        "CREATE FUNCTION full_too() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'No space left on device' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_too AFTER INSERT ON raw.orders EXECUTE FUNCTION full_too()",
    )
    refused(
        place,
        lambda: project.run("orders"),
        1,
        "publishing into raw.orders: the database server's disk is full",
        "nothing was published",
    )
    place.target.execute("DROP TRIGGER full_too ON raw.orders")
    assert project.run("orders").rows == 10
