"""Odd names work, SQL in a name stays a name, and nobody's functions are run by our sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import tidegate
from integration.conftest import Database, MakeProject
from tidegate.core.relation import Relation
from tidegate.postgres.connection import connect, own_path
from tidegate.postgres.queries import OwnSQL

NAMES = [
    """A "q" 'a' d.t 100%s %(x)s {} {x} \\ `t` $$ ü漢 """,
    '"; DROP TABLE public.victims; --',
    "x" * 63,
]
MORE_NAMES = [
    "select",
    " lead and trail ",
    "'; DROP TABLE public.victims; --",
    '" ; DROP SCHEMA public CASCADE; SELECT "',
    "$$; DROP TABLE public.victims; $$",
    "*/ DROP TABLE public.victims /*",
]


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(name, marks=pytest.mark.chaos) for name in MORE_NAMES)]
)
def test_any_name_may_stand_anywhere(make_project: MakeProject, name: str) -> None:
    """Schema, table, key, cursor and column of the source; target, marker table and ledger."""
    source, target = Relation(name, name), Relation(f"{name[:50]} to", name)
    key, cursor, other = name, f"{name[:50]} c", f"{name[:50]} o"
    ledger, marker = f"{name[:50]} l", name.replace(".", "·")
    project, place = make_project(
        {
            "source": f"shop:{source}",
            "target": f"warehouse:{target}",
            "key": [key],
            "cursor": cursor,
            "batch_rows": 2,
            "partitions": 2,
        },
        databases=2,
        ledger={"schema": ledger, "marker_table": marker},
    )
    for database in (place.source, place.target):
        database.execute("CREATE TABLE public.victims ()")
    table = sql.Identifier(name, name)
    place.source.execute(
        sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)),
        sql.SQL("CREATE TABLE {} ({} text PRIMARY KEY, {} int NOT NULL, {} text)").format(
            table, *map(sql.Identifier, (key, cursor, other))
        ),
        sql.SQL("INSERT INTO {} VALUES ({a}, 1, {a}), ('b', 2, NULL), ('c', 2, ''), ('d', 2, '')")
        .format(table, a=sql.Literal(name)),
    )  # fmt: skip
    report = project.run("orders")
    assert report.rows == 4
    rows = sql.SQL("SELECT t::text FROM {} t ORDER BY 1")
    assert place.source.execute(rows.format(table)) == place.target.execute(
        rows.format(sql.Identifier(target.schema, target.name))
    )
    markers = sql.SQL("SELECT count(*) FROM {} WHERE target_table = {}").format(
        sql.Identifier(ledger, marker), sql.Literal(str(target))
    )
    assert place.target.value(markers) == len(report.loads)
    assert project.run("orders").found_nothing
    project.watermark("orders").rewind("1", reason=name)
    assert project.run("orders", full_refresh=True).rows == 4
    for database in (place.source, place.target):
        assert database.execute("SELECT to_regclass('public.victims') IS NOT NULL") == [(True,)]


PIPELINE = """
import tidegate as tg

@tg.sync(source={source!r}, target={target!r}, key=[{name!r}], cursor="c")
def orders(df):
    return df
"""


def test_any_name_passes_through_a_transformation(make_project: MakeProject) -> None:
    name = NAMES[0]
    relation = Relation("public", name)
    project, place = make_project(
        databases=2,
        pipelines=PIPELINE.format(
            source=f"shop:{relation}", target=f"warehouse:{relation}", name=name
        ),
    )
    table = sql.Identifier("public", name)
    place.source.execute(
        sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, c int NOT NULL)").format(
            table, sql.Identifier(name)
        ),
        sql.SQL("INSERT INTO {} VALUES (1, 1), (2, 2)").format(table),
    )
    assert project.run("orders").rows == 2
    rows = sql.SQL("SELECT * FROM {} ORDER BY c").format(table)
    assert place.target.execute(rows) == place.source.execute(rows)


# Every overload of the functions that we call, as another might make it: of the same types, of
# types that a literal without one would fit better, and with a type where any will do.
OVERLOADS = """
SELECT DISTINCT p.proname, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t)
FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY(%s)
  AND p.pronargs BETWEEN 0 AND 4
"""
INSTEAD = {
    "bigint": ["bigint", "integer"],
    "text": ["text", "character varying"],
    "name": ["name", "text"],
    "double precision": ["double precision", "numeric"],
    '"any"': ["text", "bigint"],
    "anyelement": ["text", "bigint"],
    "anycompatible": ["text", "bigint"],
    "anyarray": ["text[]", "bigint[]"],
    "anycompatiblearray": ["text[]", "bigint[]"],
    "anyenum": ["public.mood"],
}
OPERATORS = {
    "=": ["varchar, varchar", "varchar, text", "text[], text[]", "integer, numeric",
          "oid, integer", "public.mood, public.mood", "jsonb, text", "public.code, public.code"],
    "<>": ["text[], text[]", "varchar, varchar", "public.mood, public.mood", "oid, integer"],
    ">": ["varchar, varchar", "varchar, text", "integer, numeric", "public.code, bigint"],
    "<": ["varchar, varchar", "varchar, text", "integer, numeric"],
    "<=": ["varchar, varchar", "varchar, text", "integer, numeric"],
    "||": ["text, numeric", "text, bigint", "text, integer", "text, timestamptz"],
    "&": ["bigint, integer"],
    "-": ["jsonb, jsonb", "numeric, bigint"],
}  # fmt: skip
SOURCE = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE DOMAIN code AS bigint;
CREATE SCHEMA ext;
CREATE EXTENSION citext SCHEMA ext;
CREATE TABLE orders (id varchar(20) PRIMARY KEY, m mood, total numeric, tags text[],
                     c code NOT NULL, updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE people (name ext.citext PRIMARY KEY, n int);
CREATE VIEW seen AS SELECT id, m, c, updated_at FROM orders;
"""


def called() -> list[str]:
    """The names of everything in our sources that may be a function of Postgres."""
    folder = Path(tidegate.__file__).parent
    files = [*folder.rglob("*.sql"), *folder.rglob("*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return sorted(set(re.findall(r"\b([a-z][a-z0-9_]+)\(", text)))


def lay_traps(database: Database, role: str) -> int:
    """Make them as a role that may create in public; returns how many."""
    with database.connect() as session:
        session.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {role}")
        session.execute(f"SET ROLE {role}")
        made = 0
        kinds = [*session.execute(OVERLOADS, (called(),))]
        for name, types in kinds:
            lists: list[list[str]] = [[]]
            for one in types:
                lists = [[*had, new] for had in lists for new in INSTEAD.get(one, [one])][:6]
            for arguments in lists:
                try:
                    session.execute(trap(f'"{name}"', arguments))
                    made += 1
                except psycopg.Error:
                    continue  # of a type that no function may have
        for number, (symbol, pairs) in enumerate(OPERATORS.items()):
            for place, pair in enumerate(pairs):
                left, right = pair.split(", ")
                session.execute(trap(f"o{number}_{place}", [left, right], "boolean"))
                session.execute(
                    f"CREATE OPERATOR public.{symbol} (FUNCTION = public.o{number}_{place},"
                    f" LEFTARG = {left}, RIGHTARG = {right})"
                )
                made += 1
        return made


def trap(name: str, types: list[str], returns: str = "text") -> str:
    return (
        f"CREATE OR REPLACE FUNCTION public.{name}({', '.join(types)}) RETURNS {returns}"
        f" LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'run as %: {name}', current_user; END $$"
    )


@contextmanager
def mallory(database: Database) -> Iterator[str]:
    role = f"mallory_{uuid4().hex[:8]}"
    database.execute(f"CREATE ROLE {role}")
    yield role
    database.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_functions_and_operators_of_others_are_never_run(make_project: MakeProject) -> None:
    common = {"cursor": "updated_at", "lookback": "1 hour"}
    project, place = make_project(
        {
            **common,
            "name": "orders",
            "source": "shop:public.orders",
            "target": "warehouse:raw.orders",
            "where": "total > 0",
            "reject_limit": 0.9,
            "batch_rows": 3,
        },
        {**common, "name": "asked", "source": "shop", "target": "warehouse:raw.asked",
         "query": "SELECT id, m, c, updated_at FROM orders", "key": ["id"],
         "null_cursor": "exclude"},
        {**common, "name": "seen", "source": "shop:public.seen", "target": "warehouse:raw.seen",
         "key": ["id"], "mode": "append", "null_cursor": "exclude"},
        {"name": "counted", "source": "shop:public.orders", "target": "warehouse:raw.counted",
         "cursor": "c", "lookback": 50},
        {"name": "written", "source": "shop:public.orders", "target": "warehouse:raw.written",
         "changes": "snapshot", "batch_rows": 4},
        {"name": "changed", "source": "shop:public.orders", "target": "warehouse:raw.changed",
         "changes": "cdc"},
        {"name": "people", "source": "shop:public.people", "target": "warehouse:raw.people",
         "mode": "replace"},
        **{"sync.orders.checks": {"few": "total < 1000"}},
    )  # fmt: skip
    source = place.source
    source.execute(SOURCE)
    with mallory(source) as role, source.connect() as session:
        assert lay_traps(source, role) > 300
        session.execute("SET search_path = pg_catalog")

        def put(low: int, high: int) -> None:
            session.execute(
                "INSERT INTO public.orders SELECT i::text, 'good', i, ARRAY['a'], i,"
                " clock_timestamp() FROM generate_series(%s::int, %s::int) i",
                (low, high),
            )

        put(0, 9)
        session.execute("INSERT INTO public.people VALUES ('Ann', 1), ('Bo', 1)")
        names = list(project.syncs)
        for name in names:
            assert project.run(name).status == "done", name
        put(10, 12)
        session.execute(
            "UPDATE public.orders SET total = 5000, updated_at = clock_timestamp()"
            " WHERE id OPERATOR(pg_catalog.=) '3'"
        )
        session.execute("DELETE FROM public.people WHERE n = 1")
        session.execute("INSERT INTO public.people VALUES ('Ann', 2)")
        for name in names:
            assert project.run(name).status == "done", name
            assert project.verify(name).intact, name
        session.execute("DELETE FROM raw.asked WHERE id IN ('1'::text, '2'::text)")
        assert project.verify("asked", repair=True).intact
        assert session.execute("SELECT name::text, n FROM raw.people").fetchall() == [("Ann", 2)]


def test_sql_of_users_is_looked_up_by_the_roles_own_path(database: Database) -> None:
    database.execute("CREATE SCHEMA app", "CREATE TABLE app.t (n int)")
    name = database.value("SELECT current_database()")
    database.execute(f'ALTER DATABASE "{name}" SET search_path = app')
    with connect(database.conninfo, name="db") as session:
        path = "SELECT current_setting('search_path')"
        pinned = "pg_catalog, pg_temp"
        assert session.execute(path).fetchone() == (pinned,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.execute("SELECT FROM t")
        session.execute(OwnSQL("INSERT INTO t VALUES (1)"))
        assert session.execute(path).fetchone() == (pinned,)
        with session.transaction():
            session.execute(OwnSQL("INSERT INTO t VALUES (2)"))
            assert session.execute(path).fetchone() == (pinned,)
            with pytest.raises(psycopg.errors.UndefinedTable), session.transaction():
                session.execute(OwnSQL("SELECT FROM nothing"))
            assert session.execute(path).fetchone() == (pinned,)
        # One that its user has set otherwise stays so.
        session.execute("SET search_path = public")
        with own_path(session):
            assert session.execute("SELECT count(*) FROM t").fetchone() == (2,)
        assert session.execute(path).fetchone() == ("public",)
