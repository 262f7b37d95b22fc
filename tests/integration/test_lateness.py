"""How far behind the watermark rows arrived is observed by lookbacks and told by `status`."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from integration.orders import CREATE, FILL, ORDERS
from tidegate.cli.main import app
from tidegate.insight.status import SyncStatus, read_status
from tidegate.insight.sync_lines import list_syncs
from tidegate.model.lateness import Lateness
from tidegate.project import Project


def status(project: Project) -> SyncStatus:
    (found,) = read_status(project.context, [project.sync("orders")]).syncs
    return found


def late(project: Project) -> Lateness:
    found = status(project).late
    assert found is not None
    return found


def test_late_rows_are_counted_and_measured_and_others_are_not(make_project: Any) -> None:
    project, place = make_project({**ORDERS, "lookback": "10 minutes"})
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    assert status(project).late is None
    # The watermark is at 00:10: these come 2, 4 and 7 minutes late; the last one too late.
    place.source.execute(
        "INSERT INTO orders VALUES (20, 1, '2026-01-01 00:08+00'),"
        " (21, 1, '2026-01-01 00:06+00'), (22, 1, '2026-01-01 00:03+00')",
        "UPDATE orders SET total = 77 WHERE id = 9",
    )
    project.run("orders")
    found = late(project)
    assert (found.rows, found.loads, found.farthest, found.in_seconds) == (4, 1, 420, True)
    assert found.half_within == 120
    with place.open().context.plane.connect() as control:
        (line,) = list_syncs(project.context, control, project.declared)
    assert (line.late_rows, line.late_farthest) == (4, 420)
    # What comes on time, or again, is not late.
    place.source.execute("INSERT INTO orders VALUES (30, 1, '2026-01-01 00:11+00')")
    project.run("orders")
    assert late(project) == found

    place.source.execute("INSERT INTO orders VALUES (31, 1, '2026-01-01 00:02+00')")
    project.run("orders")
    found = late(project)
    assert (found.rows, found.loads, found.farthest) == (5, 2, 540)

    told = CliRunner().invoke(app, ["status", "--project", str(place.folder)])
    assert "orders: 5 late rows in 2 loads that had any, at most 9 min behind" in told.output
    assert "lookback = 10 minutes" in told.output
    shown = CliRunner().invoke(app, ["status", "--json", "--project", str(place.folder)])
    assert json.loads(shown.output)["syncs"][0]["late"]["farthest"] == 540


def test_an_integer_cursor_is_measured_in_its_own_steps_and_append_as_well(
    make_project: Any,
) -> None:
    sync = {**ORDERS, "cursor": "id", "lookback": 50, "mode": "append", "key": ["id"]}
    project, place = make_project(sync)
    place.source.execute(
        *CREATE, "INSERT INTO orders SELECT n * 10, n FROM generate_series(1, 9) n"
    )
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (85, 1), (42, 1)")
    project.run("orders")
    found = late(project)
    assert (found.rows, found.farthest, found.half_within) == (2, 48, 5)
    assert found.in_seconds is False
