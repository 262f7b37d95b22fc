"""What the commands say of syncs that find rows by their transactions."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from integration.conftest import MakePlace, Place
from integration.test_snapshot_sync import ORDERS, WINDOWED, seed, seed_stamped
from tidegate.cli.main import app
from tidegate.spark.session import SparkSessions


def say(place: Place, *words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--project", str(place.folder)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_the_commands_speak_of_transactions(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = make_place(ORDERS, databases=2)
    seed(place)
    before = say(place, "plan", "orders")
    assert "cursor none: rows are found by the transaction that wrote them" in before
    assert "watermark at the start" in before
    assert "10 rows in 1 batch; next: all rows, 10 rows" in before
    assert "guarantee exact: rows are found by the transaction" in before
    assert "horizon" not in before
    project = place.open(warm_spark)
    project.run("orders")
    at = project.watermark("orders").value
    place.source.execute("INSERT INTO orders VALUES (11, 'new')")
    after = say(place, "plan", "orders")
    assert f"watermark transaction {at} (generation 0)" in after
    assert f"next: written since {at}, 1 rows" in after
    assert str(at) in say(place, "status")
    assert "cursor type: xid8" in say(place, "watermark", "show", "orders")
    found = json.loads(say(place, "plan", "orders", "--json"))
    assert found["plans"][0]["changes"] == "snapshot"
    assert "equal" in say(place, "verify", "orders")


def test_the_plan_says_what_a_lookback_bounds(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = make_place(WINDOWED, databases=2)
    seed_stamped(place)
    place.open(warm_spark).run("orders")
    found = say(place, "plan", "orders")
    assert "cursor updated_at, timestamp with time zone, indexed; bounds how far back" in found
    assert "guarantee bounded: rows are found by the transaction that wrote them, bounded" in found
    assert "lies more than 1 hour below the highest that was loaded (20" in found
    status = json.loads(say(place, "status", "--json"))
    assert status["syncs"][0]["lag"]["rows"] == 0


def test_a_group_may_find_its_rows_so(make_place: MakePlace, warm_spark: SparkSessions) -> None:
    group = {"name": "all", "source": "shop:public.*", "target": "warehouse:raw.{table}"}
    place = make_place({**group, "changes": "snapshot"}, databases=2)
    seed(place)
    place.source.execute("CREATE TABLE bare (a int)", "INSERT INTO bare VALUES (1), (1)")
    project = place.open(warm_spark)
    for table in ("orders", "bare"):
        project.run(f"all.{table}")
    assert project.watermark("all.orders").get().cursor_type == "xid8"
    assert place.target.value("SELECT count(*) FROM raw.bare") == 2
    found = say(place, "plan", "all.bare")
    assert "no key, so the whole table is loaded whenever anything changed" in found
