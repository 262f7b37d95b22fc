"""The README's own pipeline and its lines of Python, run as they stand."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import tidegate as tg
from integration.conftest import MakePlace
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
(PIPELINES,) = [block for block in BLOCKS if "@tg.task" in block]
(FROM_PYTHON,) = [block for block in BLOCKS if "tg.open" in block]


def test_the_readmes_task_runs_after_its_sync(
    make_place: MakePlace, warm_spark: SparkSessions, monkeypatch: Any
) -> None:
    place = make_place(databases=2, pipelines=PIPELINES)
    place.source.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10,2), internal_note text,"
        " updated_at timestamptz NOT NULL)",
        "INSERT INTO orders SELECT n, n - 2, 'x', '2026-11-01 12:00+00'::timestamptz"
        " + n / 5 * interval '1 day' FROM generate_series(1, 8) n",
    )
    project = place.open(warm_spark)
    monkeypatch.setattr(Project, "open", lambda _: project)
    monkeypatch.setattr(Project, "close", lambda _: None)  # the Spark is that of all tests
    monkeypatch.chdir(place.folder)
    exec(FROM_PYTHON, {"tg": tg})
    assert place.target.value("SELECT count(*) FROM raw.orders") == 7
    assert place.target.execute("SELECT day::text, total FROM marts.revenue") == [
        ("2026-11-01", Decimal("3.00"))
    ]
