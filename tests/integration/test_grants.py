"""The roles of docs/grants.md are enough, and the page says so in scripts that are run here."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from integration.conftest import Database, MakeProject

PAGE = Path(__file__).parents[2] / "docs" / "grants.md"
SCRIPTS = dict(re.findall(r"```sql (\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}


def test_a_load_a_verification_and_a_repair_need_no_more_than_the_page_grants(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=3)
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text,"
        " updated_at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO orders SELECT i, 'n', now() - interval '1 day' FROM generate_series(1, 9) i",
    )
    assert list(SCRIPTS) == ["source", "target", "control"]
    databases = dict(zip(SCRIPTS, (place.source, place.target, place.control), strict=True))
    file = place.folder / "tidegate.toml"
    text = file.read_text(encoding="utf-8")
    try:
        for name, script in SCRIPTS.items():
            database = databases[name]
            database.execute(script, f"ALTER ROLE tidegate_{name} PASSWORD 'x'")
            limited = make_conninfo(
                database.conninfo, user=f"tidegate_{name}", password="x", passfile="none"
            )
            assert database.conninfo in text.replace('\\"', '"')
            text = text.replace(database.conninfo, limited)
            with psycopg.connect(limited, autocommit=True) as session:
                for forbidden in ("CREATE SCHEMA mine", "CREATE TABLE public.mine (n int)"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        session.execute(forbidden)
        file.write_text(text, encoding="utf-8")
        opened = place.open(project.context.spark)
        assert opened.run("orders").rows == 9
        place.source.execute("UPDATE orders SET name = 'm', updated_at = now() WHERE id < 4")
        assert opened.run("orders").rows == 3
        assert opened.verify("orders").intact
        place.target.execute("DELETE FROM raw.orders WHERE id = 2")
        assert opened.verify("orders", repair=True).intact
        with (
            psycopg.connect(
                make_conninfo(
                    place.source.conninfo, user="tidegate_source", password="x", passfile="none"
                )
            ) as session,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            session.execute("DELETE FROM orders")
    finally:
        for name, database in databases.items():
            drop_role(database, f"tidegate_{name}", *databases.values())


def drop_role(home: Database, role: str, *databases: Database) -> None:
    if not home.value(f"SELECT count(*) FROM pg_roles WHERE rolname = '{role}'"):
        return
    for database in databases:
        database.execute(f"DROP OWNED BY {role} CASCADE")
    home.execute(f"DROP ROLE {role}")
