"""Every example is run as its README says, command by command, in a copy of its folder."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest

from acceptance.spark_server import SparkServer
from tidegate.project import Project

EXAMPLES = Path(__file__).parents[2] / "examples"


def commands_of(readme: Path) -> list[str]:
    """The shell commands that a README tells its reader to type."""
    blocks = re.findall(r"^```sh\n(.*?)^```", readme.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def run(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    for name in ("SHOP_URL", "WAREHOUSE_URL", "TIDEGATE_PROFILE", "TIDEGATE_PROJECT_DIR"):
        environment.pop(name, None)
    # As installed from a wheel: the plugin of this package, whether or not it is registered here.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = "-p tidegate.testing.plugin -p no:cacheprovider"
    environment["PYTEST_ADDOPTS"] = f"{plugins} {os.environ.get('PYTEST_ADDOPTS', '')}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A copy of one example, whose server is stopped afterwards."""
    folder = tmp_path / request.param
    shutil.copytree(
        EXAMPLES / request.param,
        folder,
        ignore=shutil.ignore_patterns(".tidegate", "__pycache__"),
    )
    yield folder
    run("tidegate db stop", folder)


@pytest.fixture
def warm_spark(spark_server: SparkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an example does not care about its Spark, its commands share one that runs."""
    monkeypatch.setenv("TIDEGATE_SPARK__REMOTE", spark_server.url)


def follow_readme(folder: Path, port: int = 8787) -> dict[str, list[str]]:
    """Type every command; what each printed, in order. The service is at another port, if given."""
    printed: dict[str, list[str]] = {}
    for command in commands_of(folder / "README.md"):
        typed = command.replace("localhost:8787", f"localhost:{port}")
        printed.setdefault(command, []).append(run(typed, folder))
    return printed


def fetch(folder: Path, connection: str, query: str) -> list[tuple[object, ...]]:
    with Project.open(folder).connect(connection) as session:
        return session.execute(query.encode()).fetchall()


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_spark")
@pytest.mark.parametrize("example", ["first_sync"], indirect=True)
def test_the_first_sync_example_copies_three_tables_and_keeps_up_with_them(example: Path) -> None:
    printed = follow_readme(example)

    for table, order in (("products", "id"), ("stock", "depot, product_id"), ("page_views", "id")):
        source = fetch(example, "shop", f"SELECT * FROM public.{table} ORDER BY {order}")
        target = fetch(example, "warehouse", f"SELECT * FROM raw.{table} ORDER BY {order}")
        assert target == source
        assert source
    first, second, last = printed["tidegate run --all"]
    assert "page_views: 2,000 rows, 2,000 changed, (2000, 4000]" in first
    assert "products: done, 101 rows" in second
    assert "lookback" in second
    assert "page_views: ran, found nothing new" in last
    for output in printed["tidegate verify --all"]:
        assert output.count("rows equal") == 3


@pytest.mark.chaos
@pytest.mark.parametrize("example", ["sensors"], indirect=True)
def test_the_sensors_example_makes_facts_by_a_model_of_its_own(example: Path) -> None:
    printed = follow_readme(example)

    totals = json.loads((example / "totals.json").read_text())
    assert totals["facts"] > 1_000
    assert min(totals["duplicates"], totals["failed"]) > 0
    facts = "SELECT count(*), sum(value)::text, sum(alarm_code)::text FROM plant.readings"
    sums = totals["sums"]
    assert fetch(example, "warehouse", facts) == [
        (totals["facts"], sums["value"], sums["alarm_code"])
    ]
    failed = "SELECT count(*) FROM raw_events WHERE status = 'failed' AND error IS NOT NULL"
    assert fetch(example, "warehouse", failed) == [(totals["failed"],)]
    for name, rows in totals["dimensions"].items():
        assert fetch(example, "warehouse", f"SELECT count(*) FROM plant.{name}") == [(rows,)]
    view = "SELECT sum(readings) FROM plant.mv_days"
    kept = "SELECT count(*)::numeric FROM plant.readings WHERE NOT is_test"
    assert fetch(example, "warehouse", view) == fetch(example, "warehouse", kept)
    first, again = printed["tidegate event run"]
    assert f"{totals['facts']:,} facts" in first
    assert "refreshed" not in again, "nothing has changed since"
    # So few events are read by the process itself.
    assert not list((example / ".tidegate").glob("logs/*spark*"))


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_spark")
@pytest.mark.parametrize("example", ["transform"], indirect=True)
def test_the_transform_example_loads_what_its_function_returns(example: Path) -> None:
    printed = follow_readme(example)

    expected = fetch(
        example,
        "shop",
        "SELECT id, status, encode(sha256(email::bytea), 'hex'), quantity, price, mood::text,"
        " updated_at, address->>'country', quantity * price FROM orders"
        " WHERE status <> 'test' ORDER BY id",
    )
    found = fetch(
        example,
        "warehouse",
        "SELECT id, status, email, quantity, price, mood, updated_at, country, total"
        " FROM raw.orders ORDER BY id",
    )
    assert found == expected
    assert len(found) == 1900
    types = fetch(
        example,
        "warehouse",
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'raw' AND column_name IN ('mood', 'total', 'address')",
    )
    assert dict(types) == {"mood": "text", "total": "numeric"}
    assert "found nothing new" in printed["tidegate run orders"][-1]


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_spark")
@pytest.mark.parametrize("example", ["fifty_tables"], indirect=True)
def test_the_fifty_tables_example_copies_tables_of_every_kind(example: Path) -> None:
    printed = follow_readme(example)

    tables = fetch(
        example,
        "shop",
        "SELECT c.relname FROM pg_class c WHERE relnamespace = 'public'::regnamespace"
        " AND relkind IN ('r', 'p') AND NOT relispartition AND relname NOT LIKE 'tmp%'",
    )
    assert len(tables) == 50
    for (table,) in [*tables, ("order_totals",)]:
        source = fetch(example, "shop", f'SELECT t::text FROM public."{table}" t')
        target = fetch(example, "warehouse", f'SELECT t::text FROM raw."{table}" t')
        assert sorted(map(str, target)) == sorted(map(str, source)), table
    (plan,) = printed["tidegate plan"]
    assert "shop: shop:public.* → warehouse:raw.{table}, 50 tables" in plan
    assert "left out: public.events_2025, public.events_2026" in plan
    for output in printed["tidegate verify --all"]:
        assert output.count("rows equal") == 51


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_spark")
@pytest.mark.parametrize("example", ["lake_maintenance"], indirect=True)
def test_the_lake_of_many_small_loads_is_put_right_over_http(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("TIDEGATE_SERVE__PORT", str(port))
    try:
        printed = follow_readme(example, port)
    except BaseException as error:
        end_by_id(example / "up.pid")
        log = example / "up.log"
        error.add_note(log.read_text() if log.exists() else "nothing was started")
        raise

    first, last = printed["tidegate table health raw.orders"]
    assert "12 of 12 data files are below 384 MB" in first
    assert last == "good: lake:raw.orders\n"
    asked = "curl -fsS localhost:8787/tables/raw/orders/health"
    bad, good = (json.loads(one)["health"] for one in printed[asked])
    assert [one["name"] for one in bad["issues"]] == ["small_files"]
    assert good == {"status": "good", "is_good": True, "issues": []}
    ((history,),) = (
        json.loads(one)["jobs"]
        for command, outputs in printed.items()
        if command.endswith("/maintenance/history")
        for one in outputs
    )
    assert history["status"] == "done"
    actions = {one["action"]: one["detail"] for one in history["actions"]}
    assert list(actions) == ["expire_snapshots", "rewrite_data_files", "rewrite_manifests"]
    assert actions["expire_snapshots"]["actual"]["snapshots"] == 12
    rewritten = actions["rewrite_data_files"]
    assert (rewritten["files_before"], rewritten["files_after"]) == (12, 1)
    (followed,) = (one for command, (one, *_) in printed.items() if "job show" in command)
    assert "rewrite_data_files: 12 → 1 data files" in followed
    assert "found nothing new" in printed["tidegate run orders"][-1]


def end_by_id(file: Path) -> None:
    """What a README starts in the background must not outlive a failed test."""
    if file.exists():
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGTERM)


@pytest.mark.chaos
@pytest.mark.parametrize("example", ["spark_job"], indirect=True)
def test_the_spark_job_example_publishes_each_month_once(example: Path) -> None:
    printed = follow_readme(example)

    with (example / "orders.csv").open(encoding="utf-8") as file:
        orders = list(csv.DictReader(file))
    expected: dict[tuple[str, str], tuple[int, Decimal]] = {}
    for order in orders:
        count, total = expected.get((order["day"], order["country"]), (0, Decimal(0)))
        expected[order["day"], order["country"]] = (count + 1, total + Decimal(order["total"]))
    found = fetch(
        example, "warehouse", "SELECT day::text, country, orders, total FROM marts.revenue"
    )
    assert {(day, country): (count, total) for day, country, count, total in found} == expected
    assert len(found) == len(expected)
    first, again = printed["python revenue.py 2026-11"]
    assert "revenue-2026-11: done, " in first
    assert "revenue-2026-11: already, 0 rows" in again
    assert "revenue-2026-10" in printed["tidegate marker list warehouse"][0]


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("example", ["pytest"], indirect=True)
def test_the_pytest_example_is_proved_and_passes_its_own_tests(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prove` kills it at every point; its own test that does the same is run by make chaos."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'not killed_anywhere'")
    assert_proved(example, "3 passed, 1 deselected")


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("example", ["pytest"], indirect=True)
def test_the_pytest_example_passes_all_of_its_own_tests(example: Path) -> None:
    assert_proved(example, "4 passed")


def assert_proved(example: Path, passed: str) -> None:
    printed = follow_readme(example)
    (tests,) = printed["pytest test_orders.py"]
    assert passed in tests
    (proof,) = printed["tidegate prove orders --rows 60 --junit prove.xml"]
    assert proof.splitlines()[-1] == "orders: 15 kills, 0 lost, 0 doubled"
    assert (example / "prove.xml").exists()
