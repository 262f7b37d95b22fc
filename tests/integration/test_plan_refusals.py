"""`plan` refuses what is unsafe, names the fix, and goes on with the other syncs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from conftest import MakeDatabase
from integration.orders import CREATE, FILL, ORDERS, plan_all, plan_one
from tidegate.errors import DeclarationError
from tidegate.project import Project


def refusal(project: Project) -> str:
    found = plan_all(project)
    assert found.plans == ()
    assert found.exit_code == 2
    return f"{found.refusals[0].message} / {found.refusals[0].hint}"


def test_every_refusal_is_listed_and_the_rest_is_planned(make_place: Any) -> None:
    place = make_place(
        {**ORDERS, "name": "good"},
        {**ORDERS, "name": "no_table", "source": "shop:public.ordres", "target": "warehouse:a"},
        {**ORDERS, "name": "no_column", "cursor": "update_at", "target": "warehouse:b"},
        {**ORDERS, "name": "no_mode", "changes": "cdc", "target": "warehouse:c"},
    )
    place.source.execute(*CREATE)
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "plan", "-C", str(place.folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("good\n")
    assert "no_table: table public.ordres does not exist" in done.stderr
    assert "did you mean public.orders?" in done.stderr
    assert "no_column" in done.stderr
    assert "no_mode" in done.stderr


def test_an_unreachable_source_is_told_with_exit_code_one(make_place: Any) -> None:
    place = make_place(ORDERS, databases=2)
    text = (place.folder / "tidegate.toml").read_text()
    broken = make_conninfo(place.source.conninfo, port=1)
    changed = text.replace(json.dumps(place.source.conninfo), json.dumps(broken), 2)
    (place.folder / "tidegate.toml").write_text(changed)
    found = plan_all(Project.open(place.folder, **{"project.control": place.target.conninfo}))
    assert found.exit_code == 1
    assert 'connection "shop"' in found.refusals[0].message


def test_an_unknown_name_is_a_usage_error(make_place: Any) -> None:
    place = make_place(ORDERS)
    command = [sys.executable, "-m", "tidegate.cli.main", "plan", "ordrs", "-C", str(place.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean orders?" in done.stderr


def test_a_key_without_a_unique_index_is_looked_at_whole(make_place: Any) -> None:
    place = make_place({**ORDERS, "key": ["total"]})
    place.source.execute(*CREATE, FILL)
    plan = plan_one(place.open())
    assert (plan.key.declared, plan.key.proven) == (True, False)
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    assert "the key (total) of public.orders is not unique: one occurs 2 times" in refusal(
        place.open()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DROP TABLE raw.orders", "raw.orders does not exist, but 10 rows are recorded in it"),
        ("TRUNCATE raw.orders", "raw.orders is empty, but 10 rows are recorded in it"),
        ("ALTER TABLE raw.orders DROP COLUMN total", "it has no column total"),
        ("ALTER TABLE raw.orders ALTER total TYPE integer", "its column total is integer"),
        ("ALTER TABLE raw.orders DROP CONSTRAINT orders_pkey", "no unique index on (id)"),
    ],
)
def test_a_target_that_cannot_go_on_is_refused(make_project: Any, change: str, words: str) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.target.execute(change)
    assert words in refusal(place.open())


def test_a_table_of_another_control_plane_is_refused(
    make_project: Any, make_database: MakeDatabase
) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    other = Project.open(place.folder, **{"project.control": make_database("other")})
    assert "--take-over" in refusal(other)


def test_a_watermark_left_by_another_kind_of_cursor_is_refused(
    make_project: Any, make_place: Any
) -> None:
    project, place = make_project(ORDERS)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    other = make_place({**ORDERS, "cursor": "id"}, beside=place)
    assert "its cursor was updated_at and is now id" in refusal(other.open())
    with pytest.raises(DeclarationError, match="its cursor was updated_at and is now id"):
        other.open().run("orders")
    assert project.watermark("orders").value == "2026-01-01 00:10:00+00"


def test_rows_that_must_not_lack_a_cursor_are_refused(make_place: Any) -> None:
    place = make_place({**ORDERS, "null_cursor": "raise"})
    place.source.execute(*CREATE, "ALTER TABLE orders ALTER updated_at DROP NOT NULL")
    place.source.execute("INSERT INTO orders VALUES (1, 1, NULL)")
    assert "1 rows of public.orders have no updated_at" in refusal(place.open())


def test_the_plan_of_a_folder_without_a_project_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidegate.cli.main", "plan", "-C", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "tidegate init" in done.stderr
