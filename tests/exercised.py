"""Lists what the tests exercise: `python tests/exercised.py` prints guarantee, mode, target, point.

The list is made from the tests themselves: from the parameters of each one, from its code, and from
the functions and constants of the tests that it uses. `--against FILE` compares with an older list.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from chaos import parts_of
from tidegate.config.sync import Mode
from tidegate.core.failpoints import POINTS

ROOT = Path(__file__).parents[1]
ANY = "any"
_DEPTH = 3
_WORDS = re.compile(r"[a-z_]+(?:\.[a-z]+)?")


class Collected:
    """Keeps the tests that pytest finds, instead of running them."""

    def __init__(self) -> None:
        self.items: list[pytest.Function] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = [one for one in session.items if isinstance(one, pytest.Function)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    collected = Collected()
    words = [str(ROOT / "tests"), "--collect-only", "-qq", "-m", ""]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(words, plugins=[collected])
    found: dict[str, dict[str, int]] = {}
    for item in collected.items:
        run_by = "chaos" if item.get_closest_marker("chaos") else "test"
        for line in sorted(set(exercised(item))):
            counts = found.setdefault(" ".join(line), {"test": 0, "chaos": 0})
            counts[run_by] += 1
    json.dump(found, sys.stdout, indent=1, sort_keys=True)
    print()
    if options.against is not None:
        before = json.loads(options.against.read_text(encoding="utf-8"))
        # A test may move to another file, and so to another part.
        old, new = ({line.partition(" ")[2] for line in lines} for lines in (before, found))
        lost = sorted(old - new)
        print(f"{len(old)} before, {len(new)} now, lost: {lost}", file=sys.stderr)
        return int(bool(lost))
    return 0


def exercised(item: pytest.Function) -> Iterator[tuple[str, str, str, str]]:
    """The guarantee, by the part of its file, with each mode, target and point that it names."""
    callspec = getattr(item, "callspec", None)
    text = " ".join([item.nodeid, str(callspec.params if callspec else ""), _text(item.function)])
    words = set(_WORDS.findall(text))
    modes = [one.value for one in Mode if one.value in words] or [ANY]
    points = [one for one in POINTS if one in words] or [ANY]
    lake = "lake" in item.nodeid or "lake" in words
    for mode in modes:
        for point in points:
            yield parts_of(item.path.stem)[0], mode, "lake" if lake else "postgres", point


@functools.cache
def _text(function: FunctionType, depth: int = _DEPTH) -> str:
    """What a function says, and what it uses of the tests says."""
    function = inspect.unwrap(function)  # type: ignore[assignment]
    parts = [inspect.getsource(function)]
    for name in sorted(_names(function.__code__)):
        value: Any = function.__globals__.get(name)
        if isinstance(value, FunctionType):
            if depth and "/tests/" in value.__code__.co_filename:
                parts.append(_text(value, depth - 1))
        elif isinstance(value, str | tuple | list | dict | set | frozenset):
            parts.append(str(value))
    return " ".join(parts)


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= _names(one)
    return found


if __name__ == "__main__":
    sys.exit(main())
