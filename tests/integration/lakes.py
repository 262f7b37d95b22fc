"""Projects whose target is a lake, and ways to look into it and to damage it behind our back."""

from __future__ import annotations

from typing import Any

from integration.conftest import MakePlace, Place
from projects import EMBEDDED_LAKE
from tidegate.iceberg.session import iceberg_session
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

ORDERS = {"source": "shop:public.orders", "target": "lake:raw.orders", "cursor": "updated_at"}
CREATE = """
CREATE TABLE orders (
    id         integer PRIMARY KEY,
    total      numeric(10,2),
    note       text,
    updated_at timestamptz NOT NULL DEFAULT now()
)"""
FILL = """
INSERT INTO orders SELECT n, n, 'note ' || n, '2026-01-01 00:00+00'::timestamptz
    + n * interval '1 minute' FROM generate_series(1, 10) AS n"""


def make_lake_project(
    make_place: MakePlace,
    sessions: SparkSessions | None,
    *syncs: dict[str, Any],
    **options: Any,
) -> tuple[Project, Place]:
    """A project with a lake beside its databases."""
    place = make_place(*syncs, lake=EMBEDDED_LAKE, **options)
    return place.open(sessions), place


def change(project: Project, *statements: str) -> None:
    """Write to the lake as somebody else would: without an attempt, straight to main."""
    with iceberg_session(project.context.spark, project.context.catalog("lake")) as session:
        for statement in statements:
            session.run(statement)
