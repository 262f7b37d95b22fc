"""docs/guides/events.md, typed in from top to bottom: one event goes through the three phases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.event_page import commands
from integration.test_api_process import served
from tidegate.postgres.embedded import EmbeddedServer

SENT = "5b1f7c3e-90ad-4c58-8f0e-2a3b4c5d6e7f"
SAID_AGAIN = "0d9f3f43-6f0f-4a0c-9b58-6a1f8f3d2c11"
NOT_JSON = "77b0f8a4-6c5e-4a55-8f5d-0f0c3c1f9e22"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    EmbeddedServer(tmp_path / "shop" / ".tidegate" / "postgres").stop()


def run(command: str, folder: Path, **more: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PGTZ": "UTC", "PAGER": "cat", **more}
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.chaos
def test_the_page_does_what_it_says(folder: Path) -> None:
    first, *lines = commands()
    assert first == "tidegate init --template events shop && cd shop"
    run(first, folder)
    shop = folder / "shop"
    said: list[tuple[str, str]] = []
    for line in lines[:3]:
        said.append((line, run(line, shop)))
    with served(shop) as (_, told):
        for line in lines[3:]:
            said.append((line, run(line, shop, TIDEGATE=told["address"])))

    def after(start: str, place: int = 0) -> str:
        return [text for line, text in said if line.startswith(start)][place]

    generated = after("tidegate event generate")
    processed = after("tidegate event run")
    for figure in (generated.split(" facts")[0].split()[-1], "refresh: analytics.mv_revenue"):
        assert figure in processed
    assert json.loads(after("curl"))["ids"] == [SENT]
    assert [json.loads(after("curl", place))["accepted"] for place in (0, 1, 2)] == [1, 1, 1]
    tables = [text for line, text in said if line.startswith("tidegate db psql")]
    waiting, months, facts, accounts, raw, revenue, log = tables
    assert waiting.count("pending") == 3
    assert "2026-03" in after("tidegate event run --phase provision")
    assert "warehouse.fact_events_2026_03" in months
    assert "2 events done, 1 facts, 1 duplicates, 1 failed" in after(
        "tidegate event run --phase pro", 1
    )
    assert facts.count("a-docs") == 1
    assert "2026-03-02 08:30:00+00" in facts
    assert "Docs" in accounts
    rows = {line.split("|")[0].strip(): line for line in raw.splitlines() if "|" in line}
    assert "done" in rows[SENT]
    assert "done" in rows[SAID_AGAIN]
    assert "failed" in rows[NOT_JSON]
    assert "not JSON" in rows[NOT_JSON]
    assert "| CHF      |         1 |   19.90" in revenue
    assert log.count("analytics.mv_") == 4
    idle = after("tidegate event run", 4)
    assert "process: nothing to do" in idle
    assert "refreshed" not in idle
    assert "waiting again" in after("tidegate event retry")
    assert "failed" in after("tidegate event run", 5)
