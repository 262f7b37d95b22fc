"""Projects with tables in a lake that need care, made without Spark, and their cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from integration.conftest import MakePlace, Place
from integration.filled_lakes import fill_table, lake_place, open_table, orders
from tidegate.core.relation import Endpoint, Relation
from tidegate.maintenance.table_cache import CachedTable, Refreshed, Refresher, TableCache
from tidegate.postgres.connection import Connection
from tidegate.project import Project

ORDERS = Relation("raw", "orders")
ITEMS = Relation("raw", "items")
TARGET = Endpoint("lake", ORDERS)


def small_files(place: Place, relation: Relation = ORDERS, files: int = 6) -> None:
    """A table of so many small files, each a commit of its own."""
    table = fill_table(place, orders(range(1, 3)), relation)
    for _ in range(files - 1):
        table.append(orders(range(1, 3)))


def add_files(place: Place, relation: Relation = ORDERS, files: int = 1) -> None:
    table = open_table(place, relation)
    for _ in range(files):
        table.append(orders(range(1, 3)))


def cared_place(make_place: MakePlace, settings: str = "", **options: Any) -> Place:
    """A project with a control plane and an embedded lake, which has no table yet."""
    place = lake_place(make_place, **options)
    toml = place.folder / "tidegate.toml"
    toml.write_text(f"{toml.read_text()}\n{settings}\n")
    with place.open() as project:
        project.context.control_id()
    return place


def forget_all(place: Place) -> None:
    """As if nothing had been asked for, run or cached yet; the lake stays."""
    of_jobs = ("jobs", "job_queue", "job_attempts", "job_actions", "job_audit", "table_locks")
    others = ("lake_tables", "lake_catalogs", "sweeps", "workers", "api_tokens", "access_audit")
    tables = ", ".join(f"tidegate_control.{one}" for one in (*of_jobs, *others))
    place.control.execute(f"TRUNCATE {tables} CASCADE")


@contextmanager
def opened(place: Place) -> Iterator[tuple[Project, Connection]]:
    with place.open() as project, project.context.plane.connect() as control:
        yield project, control


def refresh(place: Place, **options: Any) -> Refreshed:
    with opened(place) as (project, control):
        return Refresher(project.context).run_once(control, **options)


def cached(place: Place, target: Endpoint = TARGET) -> CachedTable | None:
    with opened(place) as (project, control):
        return TableCache(project.context.plane, project.name).get(control, target)


def names(place: Place, *lakes: str) -> list[str]:
    with opened(place) as (project, control):
        found = TableCache(project.context.plane, project.name).names(control, lakes or ("lake",))
    return [str(one) for one in found]
