"""The roles of docs/reference/grants.md are enough: its scripts are run here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from integration.conftest import Database, MakePlace, Place, open_without_spark
from integration.orders import ORDERS
from tidegate.core.errors import TidegateError
from tidegate.project import Project

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "grants.md"
SCRIPTS = dict(
    re.findall(r"```sql\n-- (\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
CHANGES = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "changes": "cdc"}


ROLES = ("source", "target", "control")
Limited = Callable[[dict[str, Any]], tuple[Project, Place]]


@pytest.fixture
def limited(make_place: MakePlace) -> Iterator[Limited]:
    """A maker of a project whose sessions have the roles of the page and no others."""
    made: list[Place] = []

    def make(sync: dict[str, Any]) -> tuple[Project, Place]:
        place = make_place(sync, databases=3, installed=False)
        made.append(place)
        place.source.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, name text,"
            " updated_at timestamptz NOT NULL DEFAULT now())",
            "INSERT INTO orders SELECT i, 'n', now() - interval '1 day'"
            " FROM generate_series(1, 9) i",
        )
        file = place.folder / "tidegate.toml"
        text = file.read_text(encoding="utf-8")
        for name in ROLES:
            database: Database = databases(place)[name]
            database.execute(SCRIPTS[name], f"ALTER ROLE tidegate_{name} PASSWORD 'x'")
            assert database.conninfo in text.replace('\\"', '"')
            text = text.replace(database.conninfo, as_role(place, name))
        file.write_text(text, encoding="utf-8")
        return open_without_spark(place), place

    yield make
    for place in made:
        for name, database in databases(place).items():
            drop_role(database, f"tidegate_{name}", *databases(place).values())


def databases(place: Place) -> dict[str, Database]:
    return dict(zip(ROLES, (place.source, place.target, place.control), strict=True))


def as_role(place: Place, name: str) -> str:
    return make_conninfo(
        databases(place)[name].conninfo, user=f"tidegate_{name}", password="x", passfile="none"
    )


def test_a_load_a_verification_and_a_repair_need_no_more_than_the_page_grants(
    limited: Limited,
) -> None:
    assert list(SCRIPTS) == ["source", "cdc", "target", "control"]
    project, place = limited(ORDERS)
    # The roles can make nothing elsewhere.
    for name in ROLES:
        with psycopg.connect(as_role(place, name), autocommit=True) as session:
            forbidden = ["CREATE SCHEMA mine", "CREATE TABLE public.mine (n int)"]
            for statement in [*forbidden, "DELETE FROM orders"] if name == "source" else forbidden:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(statement)
    assert project.run("orders").rows == 9
    place.source.execute("UPDATE orders SET name = 'm', updated_at = now() WHERE id < 4")
    assert project.run("orders").rows == 3
    assert project.verify("orders").intact
    place.target.execute("DELETE FROM raw.orders WHERE id = 2")
    assert project.verify("orders", repair=True).intact


def test_changes_need_no_more_than_the_page_grants_and_a_publication(limited: Limited) -> None:
    project, place = limited(CHANGES)
    with pytest.raises(TidegateError, match="REPLICATION"):
        project.run("orders")
    place.source.execute(SCRIPTS["cdc"])
    with pytest.raises(TidegateError) as refused:
        project.run("orders")
    found = re.search(r"CREATE PUBLICATION .*?(?=; |\n|$)", str(refused.value))
    assert found is not None, refused.value
    place.source.execute(found.group())
    assert project.run("orders").rows == 9
    place.source.execute("DELETE FROM orders WHERE id < 4", "UPDATE orders SET name = 'm'")
    project.run("orders")
    assert project.verify("orders").intact
    assert place.target.value("SELECT count(*) FROM raw.orders WHERE name = 'm'") == 6
    place.source.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )


def drop_role(home: Database, role: str, *databases: Database) -> None:
    if not home.value(f"SELECT count(*) FROM pg_roles WHERE rolname = '{role}'"):
        return
    for database in databases:
        database.execute(f"DROP OWNED BY {role} CASCADE")
    home.execute(f"DROP ROLE {role}")
