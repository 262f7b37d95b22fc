"""One small shop for the tests of plan, status, doctor and verify, and what is written in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from tidegate.load.plan import ProjectPlan, SyncPlan
from tidegate.load.planner import plan_project
from tidegate.project import Project

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}
CREATE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10,2),"
    " updated_at timestamptz NOT NULL DEFAULT now())",
    "CREATE INDEX ON orders (updated_at)",
)
FILL = (
    "INSERT INTO orders SELECT n, n, '2026-01-01'::timestamptz + n * interval '1 minute'"
    " FROM generate_series(1, 10) n"
)


def contents(*databases: Any) -> list[Any]:
    """Everything that anybody could have written: relations, their rows, sequences."""
    found: list[Any] = []
    for database in databases:
        with database.connect() as connection:
            relations = connection.execute(
                "SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n"
                " ON n.oid = c.relnamespace WHERE n.nspname NOT LIKE 'pg\\_%'"
                " AND n.nspname <> 'information_schema' ORDER BY 1, 2, 3"
            ).fetchall()
            found.append(relations)
            for schema, name, kind in relations:
                if kind in ("r", "S"):
                    what = sql.SQL("t::text" if kind == "r" else "last_value::text")
                    rows = connection.execute(
                        sql.SQL("SELECT {} FROM {} t ORDER BY 1").format(
                            what, sql.Identifier(schema, name)
                        )
                    ).fetchall()
                    found.append((schema, name, rows))
    return found


@contextmanager
def open_transaction(database: Any, statement: str) -> Iterator[None]:
    with psycopg.connect(database.conninfo, application_name="late writer") as connection:
        connection.execute(statement)
        yield
        connection.rollback()


def plan_all(project: Project) -> ProjectPlan:
    found = plan_project(project.context, project.syncs.values())
    assert project.context.spark.started is False
    return found


def plan_one(project: Project) -> SyncPlan:
    found = plan_all(project)
    assert found.refusals == ()
    return found.plans[0]
