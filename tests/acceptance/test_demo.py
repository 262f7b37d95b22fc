"""The demo, run for real: what it shows, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acceptance.spark_server import SparkServer
from forked import Piped
from tidegate.admin.demo import DemoContent, Pair, demo_folder
from tidegate.cli.demo import DemoScreen
from tidegate.postgres.embedded import EmbeddedServer

TABLES = {"orders", "order_items", "customers"}
ON_A_WARM_SPARK = """
from tidegate.admin import demo
from tidegate.cli.main import main

demo.TOML = demo.TOML.replace('master = "local[2]"', 'remote = "{url}"')
assert "{url}" in demo.TOML
main()
"""


def environment() -> dict[str, str]:
    """A setting of another project in it must not reach the demo."""
    return {**os.environ, "TIDEGATE_PROFILE": "elsewhere", "NO_COLOR": "1"}


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "demo", "--folder", str(folder), *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=folder.parent,
    )


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, spark_server: SparkServer
) -> tuple[Path, dict[str, Any]]:
    """A demo that ran to its end where an earlier one had been, with what it reported.

    On a Spark that is warm; on one of its own by make chaos.
    """
    folder = tmp_path_factory.mktemp("demo") / "here"
    with demo_folder(folder):
        (folder / "left-behind").touch()
    script = folder.with_name("demo.py")
    script.write_text(ON_A_WARM_SPARK.format(url=spark_server.url))
    command = [str(script), "demo", "--folder", str(folder), "--json"]
    code, out, err = Piped(command, environment(), folder.parent).communicate()
    assert code == 0, out + err
    return folder, json.loads(out)


def commands_to_try(printed: str) -> list[str]:
    """What the demo ends with, as it can be pasted into a shell."""
    offered = printed.partition("Try next")[2].partition("A project of your own")[0]
    lines = [line.strip() for line in offered.splitlines()[1:]]
    return [line for line in lines if line and not line.startswith("#")]


def verdicts(step: dict[str, Any]) -> dict[str, str]:
    return {row["table"]: row["verdict"] for row in step["tables"]}


def test_source_and_target_agree_after_every_step_that_was_not_killed(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    _, report = finished
    assert report["agree"] is True
    steps = report["steps"]
    assert len(steps) == 7
    for step in steps[5:]:
        assert verdicts(step) == {"orders_in_the_lake": "agree"}
    rows = [step["tables"][0]["target_rows"] for step in steps[5:]]
    assert 0 < rows[0] < rows[1]
    for step in steps[:2] + steps[3:5]:
        assert verdicts(step) == dict.fromkeys(TABLES, "agree"), step["step"]
        for row in step["tables"]:
            assert row["source_rows"] == row["target_rows"] > 0
            assert row["source_checksum"] == row["target_checksum"]


def test_a_killed_run_leaves_each_table_either_done_or_as_it_was(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    _, report = finished
    before, killed = report["steps"][1:3]
    assert verdicts(killed) == {
        "orders": "agree",
        "order_items": "as before",
        "customers": "as before",
    }
    old = {row["table"]: row["target_checksum"] for row in before["tables"]}
    new = {row["table"]: row["target_checksum"] for row in killed["tables"]}
    assert new["order_items"] == old["order_items"]
    assert new["orders"] != old["orders"]


def test_the_demo_starts_afresh_and_stops_its_server(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    """The whole demo in plain lines, and what it offers, is run by make chaos."""
    folder, _ = finished
    assert not (folder / "left-behind").exists()
    assert not EmbeddedServer(folder / ".tidegate" / "postgres").is_running()


@pytest.mark.chaos
def test_what_the_demo_offers_can_be_typed(
    finished: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, report = finished
    server = EmbeddedServer(folder / ".tidegate" / "postgres")
    DemoScreen().goodbye(folder, report["agree"], report["seconds"], keep=False)
    commands = commands_to_try(capsys.readouterr().out)
    assert len(commands) >= 6
    printed: dict[str, str] = {}
    try:
        for command in commands:
            tried = subprocess.run(command, shell=True, capture_output=True, text=True)
            assert tried.returncode == 0, f"{command}\n{tried.stdout}\n{tried.stderr}"
            printed[command] = tried.stdout
        assert not server.is_running()
    finally:
        server.stop("immediate")
    # The lake's step changed the shop, and only the lake has followed.
    (run,) = (out for command, out in printed.items() if f"run --all -C {folder}" in command)
    assert run.count("ran, found nothing new") == 1
    assert run.count(": done, ") == len(TABLES)


def test_what_the_demo_shows_elsewhere_than_on_a_terminal_is_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = [
        Pair("orders", DemoContent(3240, "0123456789"), DemoContent(3240, "0123456789")),
        Pair("customers", DemoContent(540, "abcdef0123"), DemoContent(500, "ffffffffff")),
    ]
    DemoScreen().tables(pairs, ["agree", "as before"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["orders", "3,240", "0123456789", "3,240", "0123456789", "agree"] in lines
    assert ["customers", "540", "abcdef0123", "500", "ffffffffff", "as", "before"] in lines


@pytest.mark.chaos
def test_the_whole_demo_in_plain_lines_shows_the_same_shop_and_may_stay_up(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, report = finished
    server = EmbeddedServer(folder / ".tidegate" / "postgres")
    try:
        done = run_demo(folder, "--keep")
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.is_running()
    finally:
        server.stop("immediate")
    assert "\x1b" not in done.stdout
    assert "kill -9" in done.stdout
    assert done.stdout.count("ran, found nothing") == len(TABLES) + 2
    assert f"run --all -C {folder}" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    # The first shop is the same every time, so its checksums are too.
    for row in report["steps"][0]["tables"]:
        count = f"{row['source_rows']:,}"
        checksum = row["source_checksum"]
        assert [row["table"], count, checksum, count, checksum, "agree"] in lines


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tidegate.toml").write_text("[project]\nname = 'mine'\n")
    (folder / "thesis.txt").write_text("ten years of work")
    done = run_demo(folder)
    assert done.returncode == 2
    assert "not a demo" in done.stderr
    assert (folder / "thesis.txt").read_text() == "ten years of work"
