"""Bad input: the message names the thing and the fix, the exit code fits, nothing is changed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from integration.conftest import Database, MakePlace, MakeProject, Place
from integration.unchanged import refused, seed
from tidegate.errors import TidegateError

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}


@pytest.mark.parametrize(
    ("change", "exit_code", "parts"),
    [
        (
            {"source": "shp:public.orders"},
            2,
            ['there is no connection "shp"', "did you mean", "shop"],
        ),
        (
            {"target": "lake:raw.orders"},
            2,
            ['there is no connection "lake"', "declares: shop, warehouse"],
        ),
        (
            {"source": "shop:public.ordres"},
            1,
            ["table public.ordres does not exist in database", "did you mean public.orders"],
        ),
        (
            {"source": "shop:other.orders"},
            1,
            ["table other.orders does not exist", "did you mean public.orders"],
        ),
        (
            {"cursor": "updatedat"},
            2,
            ["cursor updatedat does not exist in public.orders", "did you mean updated_at?"],
        ),
        (
            {"key": ["idd"]},
            2,
            ["key column idd does not exist in public.orders", "did you mean id?"],
        ),
        ({"cursor": "name"}, 2, ["cursor name is of type text", "a cursor is a timestamp"]),
        ({"mode": "replace"}, 2, ["cursor = 'updated_at' means nothing", "remove the cursor"]),
        (
            {"mode": "append", "lookback": "1 hour"},
            2,
            ["append without a key would add the rows of its lookback again", "declare a key"],
        ),
        ({"columns": ["name", "updated_at"]}, 2, ["key column id is left out of the columns"]),
        ({"columns": ["id", "nmae"]}, 2, ["column nmae does not exist", "did you mean name?"]),
        (
            {"columns": ["id", "name"], "duplicates": "newest"},
            2,
            ["cursor updated_at is left out of the columns", "tells older rows from newer"],
        ),
        ({"where": "nmae = 'n'"}, 2, ["its where cannot be read", "nmae"]),
        ({"where": "id = = 3"}, 2, ["its where cannot be read", "syntax error"]),
        (
            {"source": "shop", "query": "SELECT id, id FROM orders"},
            2,
            ["columns that cannot be told apart: id"],
        ),
        (
            {"source": "shop", "query": "DELETE FROM orders RETURNING *"},
            2,
            ["its query cannot be read", "it must be a single SELECT"],
        ),
        (
            {"source": "shop", "query": "SELECT * FROM orders"},
            2,
            ["the query has no primary key, and merge needs a key"],
        ),
        (
            {"source": "shop", "query": "SELECT * FROM orders", "key": "id"},
            2,
            ["cursor updated_at of the query may be NULL", 'null_cursor = "raise"'],
        ),
        ({"lookback": 5}, 2, ["lookback = 5 for a cursor of time", 'lookback = "10 minutes"']),
        ({"target": "shop:public.orders"}, 2, ["source and target are the same table"]),
        ({"key": ["name"]}, 2, ["the key (name) of public.orders is not unique: one occurs 2"]),
        ({"target": "warehouse:a.b.c"}, 2, ["'a.b.c' is not a table name"]),
        ({"target": f"warehouse:{'x' * 64}"}, 2, ["longer than 63 bytes"]),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_declaration_is_refused_before_anything_is_written(
    make_place: MakePlace, change: dict[str, Any], exit_code: int, parts: list[str]
) -> None:
    place = make_place({**ORDERS, **change}, databases=2)
    seed(place)
    place.source.execute("UPDATE orders SET name = 'n' WHERE id < 3")
    refused(place, lambda: place.open().run("orders"), exit_code, *parts)


def test_merge_without_a_key_is_refused(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    place.source.execute("CREATE TABLE orders (id int, updated_at timestamptz NOT NULL)")
    refused(
        place,
        lambda: place.open().run("orders"),
        2,
        "public.orders has no primary key, and merge needs a key",
        'key = ["id"]',
    )


def test_no_cursor_is_refused_and_the_candidates_are_named(make_place: MakePlace) -> None:
    sync = {key: value for key, value in ORDERS.items() if key != "cursor"}
    place = make_place(sync)
    seed(place)
    refused(place, lambda: place.open().run("orders"), 2, "no cursor is declared", "id, updated_at")


def test_a_cursor_that_may_be_null_needs_a_policy(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    seed(place)
    place.source.execute("ALTER TABLE orders ALTER updated_at DROP NOT NULL")
    refused(
        place,
        lambda: place.open().run("orders"),
        2,
        "cursor updated_at of public.orders may be NULL",
        'null_cursor = "raise", "include" or "exclude"',
    )


@pytest.mark.parametrize("full_refresh", [False, True])
def test_the_raise_policy_raises_before_anything_is_loaded(
    make_place: MakePlace, full_refresh: bool
) -> None:
    place = make_place({**ORDERS, "null_cursor": "raise"})
    seed(place)
    place.source.execute(
        "ALTER TABLE orders ALTER updated_at DROP NOT NULL",
        "UPDATE orders SET updated_at = NULL WHERE id = 2",
    )
    refused(
        place,
        lambda: place.open().run("orders", full_refresh=full_refresh),
        1,
        "1 rows of public.orders have no updated_at",
        "fill them in",
    )


def test_a_cursor_of_another_type_than_the_watermark_is_refused(make_project: MakeProject) -> None:
    project, place = make_project(ORDERS)
    seed(place)
    project.run("orders")
    file = place.folder / "tidegate.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('cursor = "updated_at"', 'cursor = "id"'), encoding="utf-8")
    changed = place.open(project.context.spark)
    refused(
        place,
        lambda: changed.run("orders"),
        2,
        "its cursor was updated_at and is now id",
        "tidegate run orders --full-refresh",
    )
    assert changed.run("orders", full_refresh=True).rows == 5
    assert changed.watermark("orders").value == "5"
    place.source.execute("ALTER TABLE orders ALTER id TYPE bigint")
    assert changed.run("orders").found_nothing


def test_an_unknown_sync_is_refused_with_the_nearest(make_place: MakePlace) -> None:
    place = make_place(ORDERS)
    refused(place, lambda: place.open().run("order"), 2, "there is no sync order", "orders")


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"port": "closed"}, ['connection "shop"', "refused", "is the server running"]),
        ({"password": "wrong"}, ["password authentication failed", "check the user and password"]),
        ({"dbname": "nowhere"}, ['database "nowhere" does not exist', "create that database"]),
        ({"user": "nobody_known", "password": "x"}, ["nobody_known"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_source_that_cannot_be_reached_is_named_without_its_password(
    make_place: MakePlace, change: dict[str, str], parts: list[str]
) -> None:
    place = make_place(ORDERS, databases=3)
    seed(place)
    if "port" in change:
        change = {"port": str(closed_port())}
    wrong = make_conninfo(place.source.conninfo, **change)
    file = place.folder / "tidegate.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(place.source.conninfo, wrong, 1), encoding="utf-8")
    refused(place, lambda: place.open().run("orders"), 1, *parts)
    with pytest.raises(TidegateError) as raised:
        place.open().run("orders")
    assert "wrong" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (
            "TABLE raw.orders (id int PRIMARY KEY, name int, updated_at timestamptz)",
            ["column name"],
        ),
        (
            "TABLE raw.orders (id int, name text, updated_at timestamptz)",
            ["no unique index on (id)"],
        ),
        ("TABLE raw.orders (id int PRIMARY KEY)", ["no column name", "ADD COLUMN"]),
        ("SEQUENCE raw.orders", ["raw.orders is not a table"]),
        ("VIEW raw.orders AS SELECT 1 AS id", ["raw.orders is not a table"]),
    ],
)
def test_a_target_that_does_not_fit_is_refused(
    make_place: MakePlace, target: str, parts: list[str]
) -> None:
    place = make_place(ORDERS, databases=2)
    seed(place)
    place.target.execute("CREATE SCHEMA raw", f"CREATE {target}")
    refused(place, lambda: place.open().run("orders"), 1, *parts, "choose another target")


@contextmanager
def role(place: Place) -> Iterator[Callable[[Database], str]]:
    """A role that may log in and nothing else; what is returned gives its address."""
    name = f"plain_{uuid4().hex[:10]}"
    place.target.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    try:
        yield lambda database: make_conninfo(database.conninfo, user=name, password="secret")
    finally:
        for database in (place.source, place.target, place.control):
            database.execute(f"DROP OWNED BY {name}")
        place.target.execute(f"DROP ROLE {name}")


def test_no_right_to_create_the_ledger_is_said_with_the_statement_that_helps(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS, databases=3)
    seed(place)
    with role(place) as address:
        file = place.folder / "tidegate.toml"
        text = file.read_text(encoding="utf-8")
        limited = address(place.target)
        file.write_text(text.replace(place.target.conninfo, limited, 1), encoding="utf-8")
        refused(
            place,
            lambda: place.open().run("orders"),
            1,
            "may not create the ledger (schema tidegate)",
            "CREATE SCHEMA tidegate AUTHORIZATION plain_",
        )


def test_a_source_that_may_not_be_read_is_said_with_the_grant(make_place: MakePlace) -> None:
    place = make_place(ORDERS, databases=3)
    seed(place)
    with role(place) as address:
        file = place.folder / "tidegate.toml"
        text = file.read_text(encoding="utf-8")
        limited = address(place.source)
        file.write_text(text.replace(place.source.conninfo, limited, 1), encoding="utf-8")
        refused(
            place,
            lambda: place.open().run("orders"),
            1,
            "may not read public.orders",
            "GRANT SELECT ON public.orders TO plain_",
        )


def test_columns_that_may_not_be_read_are_named_before_anything_is_written(
    make_place: MakePlace,
) -> None:
    place = make_place(ORDERS, databases=3)
    seed(place)
    with role(place) as address:
        file = place.folder / "tidegate.toml"
        text = file.read_text(encoding="utf-8")
        limited = address(place.source)
        file.write_text(text.replace(place.source.conninfo, limited, 1), encoding="utf-8")
        name = conninfo_to_dict(limited)["user"]
        place.source.execute(f"GRANT SELECT (id, updated_at) ON orders TO {name}")
        refused(
            place,
            lambda: place.open().run("orders"),
            1,
            "may not read name of public.orders",
            f"GRANT SELECT ON public.orders TO {name}",
        )
        place.source.execute(f"REVOKE USAGE ON SCHEMA public FROM {name}, PUBLIC")
        refused(
            place,
            lambda: place.open().run("orders"),
            1,
            "may not use the schema of public.orders",
            f"GRANT USAGE ON SCHEMA public TO {name}",
        )


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


@pytest.mark.parametrize("transformed", [False, True])
def test_a_full_disk_while_staging_leaves_everything_as_it_was(
    make_project: MakeProject, transformed: bool
) -> None:
    if transformed:
        project, place = make_project(databases=2, pipelines=TRANSFORMED)
    else:
        project, place = make_project(ORDERS, databases=2)
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
    place.target.execute("DROP EVENT TRIGGER arm")
    assert project.run("orders").rows == 10


def test_a_full_disk_while_publishing_leaves_everything_as_it_was(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    project.run("orders")
    place.target.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'No space left on device' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER full_disk AFTER INSERT ON raw.orders EXECUTE FUNCTION full_disk()",
    )
    place.source.execute("INSERT INTO orders VALUES (101, 'x', now())")
    refused(
        place,
        lambda: project.run("orders"),
        1,
        "publishing into raw.orders: the database server's disk is full",
        "nothing was published",
    )


@pytest.mark.parametrize("harm", ["DROP TABLE raw.orders", "TRUNCATE raw.orders"])
@pytest.mark.parametrize("new_rows", [False, True])
def test_a_target_that_lost_its_rows_is_refused_until_a_person_decides(
    make_project: MakeProject, harm: str, new_rows: bool
) -> None:
    project, place = make_project(ORDERS)
    seed(place)
    project.run("orders")
    place.target.execute(harm)
    if new_rows:
        place.source.execute("INSERT INTO orders VALUES (101, 'x', now())")
    refused(
        place,
        lambda: project.run("orders"),
        1,
        "raw.orders",
        "5 rows are recorded in it",
        "tidegate run orders --full-refresh",
    )
    project.run("orders", full_refresh=True)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 5 + new_rows
