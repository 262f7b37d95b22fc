"""Bad input on the command line: what is wrong, what to do, and the exit code that fits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import forked
from integration.conftest import MakePlace
from integration.unchanged import content, seed

ORDERS = {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "updated_at"}


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, "--project", str(folder))


@pytest.mark.parametrize(
    ("arguments", "text", "code", "parts"),
    [
        (["run", "order"], None, 2, ["there is no sync order", "fix: did you mean orders?"]),
        (["run"], None, 2, ["error: which sync?", "orders, or --all"]),
        (["run", "orders", "--all"], None, 2, ["error: --all and names were both given"]),
        (["run", "orders", "--max-batches", "0"], None, 2, ["--max-batches"]),
        (["run", "orders", "--bogus"], None, 2, ["--bogus"]),
        (["run", "orders"], '[project]\nname = "x"\n[sync.orders\n', 2, ["line 3"]),
        (["run", "orders"], "[project]\nname = 'x'\nname = 'y'\n", 2, ["line 3"]),
        (["run", "orders"], "[project]\nnmae = 'x'\n", 2, ["nmae", "name"]),
        (["run", "ordres"], None, 2, ["there is no sync ordres", "did you mean orders?"]),
    ],
)
def test_the_command_says_what_is_wrong_and_ends_with_2(
    make_place: MakePlace, arguments: list[str], text: str | None, code: int, parts: list[str]
) -> None:
    place = make_place(ORDERS)
    seed(place)
    if text is not None:
        (place.folder / "tidegate.toml").write_text(text, encoding="utf-8")
    before = content(place)
    done = command(place.folder, *arguments)
    assert done.returncode == code, done.stderr
    for part in parts:
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert content(place) == before


def test_the_command_ends_with_1_when_the_world_is_wrong_and_2_when_the_declaration_is(
    make_place: MakePlace,
) -> None:
    place = make_place(
        {**ORDERS, "source": "shop:public.ordres"},
        {**ORDERS, "name": "b", "key": ["x"], "target": "warehouse:raw.b"},
    )
    seed(place)
    for name, code, message in (
        ("orders", 1, "error: orders: table public.ordres does not exist"),
        ("b", 2, "error: b: sync b: key column x does not exist"),
    ):
        done = command(place.folder, "run", name)
        assert done.returncode == code
        assert message in done.stderr
        assert "fix: did you mean" in done.stderr or "fix: there is" in done.stderr


def test_outside_a_project_the_command_says_how_to_make_one(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "orders")
    assert done.returncode == 2
    assert "tidegate.toml" in done.stderr
    assert "fix:" in done.stderr
