"""`tidegate prove` and the testing kit for a sync whose target is a lake."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import sql

from integration.conftest import MakePlace
from integration.lakes import change, make_lake_project
from integration.test_prove import ORDERS, ROWS, TABLE, Proved, fill, scratch_databases, state
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.spark.session import SparkSessions
from tidegate.testing import assert_crash_safe, assert_idempotent
from tidegate.testing.diagnosis import Diagnosis
from tidegate.testing.oracle import LakeTrial
from tidegate.testing.report import Cause
from tidegate.testing.sandbox import FreshDatabases, SandboxProject

__all__ = ["state"]

LAKE = {**ORDERS, "target": "lake:raw.orders"}
OWN = ("branch.created", "branch.staged", "intent.noted", "branch.forwarded", "branch.dropped")


EXTERNAL = '{ type = "iceberg", catalog = "rest", uri = "http://127.0.0.1:9/" }'


@pytest.mark.chaos
def test_a_sync_into_a_lake_survives_a_kill_at_every_point_in_a_lake_of_its_own(
    make_place: MakePlace, state: Path
) -> None:
    """Nothing of the proof stays."""
    _, place = make_lake_project(make_place, None, LAKE, databases=2, spark={"master": "local[2]"})
    toml = place.folder / "tidegate.toml"
    text = toml.read_text().replace("[project]\n", f'[project]\nstate = "{state}"\n', 1)
    # A catalog that nobody answers at: a proof that needed it would fail.
    toml.write_text(text.replace('{ type = "iceberg" }', EXTERNAL, 1))
    place.source.execute(TABLE)
    fill(place, 8)
    proved = Proved(place, "--json")
    assert proved.code == 0, proved.out
    document = proved.document
    assert (document["lost"], document["doubled"], document["finding"]) == (0, 0, None)
    assert 'the catalog of "lake" is left alone' in " ".join(document["notes"])
    assert scratch_databases(state) == []
    assert list((state / "prove").glob("*")) == []
    assert not (state / "lake").exists()
    killed = {kill["point"] for kill in document["kills"] if kill["killed"]}
    assert killed >= {*OWN, "publish.committed", "stage.written", "job.finished"}


def test_rows_of_a_lake_and_what_should_not_be_around_them_are_seen(
    make_place: MakePlace, warm_spark: SparkSessions, tmp_path: Path
) -> None:
    project, place = make_lake_project(make_place, warm_spark, LAKE)
    place.source.execute(TABLE)
    fill(place, 4)
    trial = LakeTrial(project.context, project.sync("orders"))
    assert (trial.content(["id"]).rows, trial.leftovers()) == ({}, [])
    project.run("orders")
    content = trial.content(["id"])
    assert content.columns == ("id", "customer", "status", "updated_at")
    assert set(content.rows) == {("1",), ("2",), ("3",), ("4",)}
    assert ("3", "3", "status 3", "2026-01-01 11:00:00+00") in content.rows["3",]
    assert trial.leftovers() == []

    change(project, f"ALTER TABLE lake.raw.orders CREATE BRANCH tidegate_{'a' * 32}")
    ledger = sql.Identifier(project.context.catalog("lake").schema)
    for statement in (
        "INSERT INTO {}.intents (target_table, update_id, attempt_id, fence)"
        " VALUES ('raw.orders', 'u-1', 'a-1', 1)",
        "INSERT INTO {}.staged_folders (folder, attempt_id, target_table, location)"
        f" VALUES ('f-1', 'a-2', 'raw.orders', '{tmp_path.as_uri()}')",
        "DELETE FROM {}.table_updates",
    ):
        place.control.execute(sql.SQL(statement).format(ledger))
    assert "staged files of attempt a-2" not in trial.leftovers()
    staged = tmp_path / "data" / "f-1"
    staged.mkdir(parents=True)
    (staged / "one.parquet").touch()
    left = trial.leftovers()
    assert left[:3] == [
        f"branch tidegate_{'a' * 32}",
        "the intent to publish u-1",
        "staged files of attempt a-2",
    ]
    assert len(left) == 4
    assert left[3].endswith("without a marker")


def test_a_finding_names_what_a_kill_has_left() -> None:
    pool = SimpleNamespace(labels=list, key_texts=lambda _: [], rows=9, invented=False)
    bench = SimpleNamespace(sync=SimpleNamespace(name="orders"))
    workshop: Any = SimpleNamespace(pool=pool, bench=bench)
    found = Diagnosis(workshop, 3, print).explain_left(["branch b", "the intent to publish u"])
    assert found.cause is Cause.LEFT
    assert found.text.endswith("there is branch b, the intent to publish u")
    assert found.command == "tidegate prove orders --seed 3 --rows 9"


@pytest.mark.chaos
def test_the_testing_kit_runs_and_kills_a_sync_into_a_lake(
    make_place: MakePlace, warm_spark: SparkSessions, server: EmbeddedServer, tmp_path: Path
) -> None:
    _, place = make_lake_project(make_place, None, LAKE)
    toml = place.folder / "tidegate.toml"
    toml.write_text(toml.read_text().replace('{ type = "iceberg" }', EXTERNAL, 1))
    databases = FreshDatabases(server)
    try:
        with SandboxProject.copy(place.folder, tmp_path / "copy", databases) as project:
            project.share_spark(warm_spark)
            with project.connect("shop") as shop:
                shop.execute(TABLE)
                shop.execute(ROWS.format(low=1, high=12))
            assert project.rows("lake:raw.orders") == []
            assert_idempotent(project, "orders")
            rows = project.rows("lake:raw.orders")
            assert sorted(row["id"] for row in rows) == list(range(1, 13))
            assert [row["id"] for row in project.rows("shop:public.orders")][:2] == [1, 2]
            assert assert_crash_safe(project, "orders", ["intent.noted", "branch.dropped"]) == 2
    finally:
        databases.close()
