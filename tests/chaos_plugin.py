"""Runs the tests of a part of `make chaos`: what was passed before, or comes too late, is not run.

Workers of xdist load this module; the process that gathers what they report has a `Recorder`.
PYTEST_DONT_REWRITE: the runner has imported it before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tried import counted

TRIED = "tried"
WORK = "chaos_work"


def write_atomically(file: Path, text: str) -> None:
    """Whoever reads it finds the old text or the new one."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


# --- where the tests run


def _work(config: pytest.Config) -> dict[str, Any]:
    """Which tests were passed before, and when no test starts any more."""
    found: dict[str, Any] = getattr(config, "workerinput", vars(config))[WORK]
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = set(_work(config)["passed"])
    config.hook.pytest_deselected(items=[one for one in items if one.nodeid in passed])
    items[:] = [one for one in items if one.nodeid not in passed]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """True: it is as good as run."""
    deadline = _work(item.config)["deadline"]
    return True if deadline is not None and time.time() >= deadline else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What fixtures tidy away before and after the test does not count."""
    before = counted()
    try:
        yield
    finally:
        item.user_properties.append((TRIED, dict(counted() - before)))


# --- where their reports come together


class Recorder:
    """Notes the end of every test in the file of its part, as soon as it is known."""

    def __init__(
        self, file: Path, state: dict[str, Any], seed: int | None, deadline: float | None
    ) -> None:
        self.failures = file.with_name(f"{file.stem}-failures.txt")
        self.interrupted = False
        self._file, self._state, self._seed = file, state, seed
        self._suffix = "" if seed is None else f" with seed {seed}"
        passed = [
            name.removesuffix(self._suffix)
            for name, one in state["results"].items()
            if one.get("outcome") == "passed" and one["seed"] == seed
        ]
        self._work = {"passed": passed, "deadline": deadline}
        self._began, self._seconds = time.monotonic(), state["seconds"]
        self._phases: dict[str, list[pytest.TestReport]] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        vars(config)[WORK] = self._work

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[WORK] = self._work

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._plan(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._plan(one.nodeid for one in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        # xdist reports a worker that died in no phase at all.
        if report.when not in ("setup", "call"):
            self._note(report.nodeid, self._phases.pop(report.nodeid))

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    def _plan(self, names: Iterable[str]) -> None:
        for name in names:
            self._state["results"].setdefault(name + self._suffix, {"seed": self._seed})
        self._write()

    def _note(self, name: str, phases: list[pytest.TestReport]) -> None:
        outcomes = {one.outcome for one in phases}
        failed = "failed" in outcomes
        told: dict[str, Any] = dict(phases[-1].user_properties)
        result = {"seed": self._seed, **told.get(TRIED, {})}
        if failed or outcomes == {"passed"}:
            result["outcome"] = "failed" if failed else "passed"
        self._state["results"][name + self._suffix] = result
        if failed:
            with self.failures.open("a", encoding="utf-8") as file:
                file.write(f"=== {name}{self._suffix}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n")
                for one in phases:
                    file.write(f"{one.longreprtext}\n" if one.failed else "")
                file.write("".join(f"--- {what}\n{text}\n" for what, text in phases[-1].sections))
        self._write()

    def _write(self) -> None:
        self._state["seconds"] = self._seconds + time.monotonic() - self._began
        self._state["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        write_atomically(self._file, json.dumps(self._state, indent=1))
