"""`make chaos`: the long reliability runs, part by part; each goes on where it was stopped."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chaos_plugin import Recorder, write_atomically
from tried import KINDS

# By the names of test files.
PARTS = {
    "ddl": "source_ddl",
    "service": "service_*",
    "lake": "lake_*",
    "loads": "named_points random_kills modes_* snapshot_* refresh_* repair_* server_crash"
    " publish_*",
    "cdc": "cdc_* late_*",
    "jobs": "worker_* job_* zombies cancel concurrent_runs scale_out",
    "tasks": "task_* graph_*",
    "events": "event_*",
    "maintenance": "maintenance_*",
}
REST = "rest"
"""the part of every file that no other part names"""
FOLDERS = ("acceptance", "integration")
COLUMNS = ("part", "tests", "passed", "failed", "left", *KINDS, "minutes", "commit", "date")
PAGE = "docs/concepts/tried.md"
INTERRUPTED = 130
BEGIN, END = "<!-- tried: begin -->", "<!-- tried: end -->"


def parts_of(name: str) -> list[str]:
    """The parts that name a test file, by its name without .py; one, if all is well."""
    found = [
        part
        for part, patterns in PARTS.items()
        if any(fnmatch(name, f"test_{pattern}") for pattern in patterns.split())
    ]
    return found or [REST]


def chaos_files(root: Path) -> dict[str, list[Path]]:
    """The files with tests for `make chaos`, by part."""
    found: dict[str, list[Path]] = {part: [] for part in (*PARTS, REST)}
    for folder in FOLDERS:
        for file in sorted((root / "tests" / folder).rglob("test_*.py")):
            if "mark.chaos" in file.read_text(encoding="utf-8"):
                found[parts_of(file.stem)[0]].append(file)
    return found


def commit_of(root: Path) -> str:
    """What is tested: the commit, and a digest of what was changed since."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True).stdout

    head = git("rev-parse", "HEAD").decode().strip()
    # The page that the results are written to is not what they are about.
    changed = git("diff", "HEAD", "--", ".", f":(exclude){PAGE}")
    return f"{head}+{hashlib.sha256(changed).hexdigest()[:8]}" if changed else head


def load(file: Path, commit: str) -> dict[str, Any]:
    """What is known of a part at this commit; of another one nothing is."""
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        state = {}
    new = {"commit": commit, "date": "", "seconds": 0.0, "results": {}}
    return state if state.get("commit") == commit else new


def is_complete(state: dict[str, Any], seed: int | None) -> bool:
    outcomes = [one.get("outcome") for one in state["results"].values() if one["seed"] == seed]
    return bool(outcomes) and set(outcomes) == {"passed"}


def row(part: str, state: dict[str, Any]) -> dict[str, Any]:
    """A line of the summary."""
    results = list(state["results"].values())
    outcomes = [one.get("outcome") for one in results]
    commit, _, changes = state["commit"].partition("+")
    values = {
        "part": part,
        "tests": len(results),
        "passed": outcomes.count("passed"),
        "failed": outcomes.count("failed"),
        "left": outcomes.count(None),
        **{kind: sum(one.get(kind, 0) for one in results) for kind in KINDS},
        "minutes": round(state["seconds"] / 60, 1),
        "commit": commit[:10] + ("+" + changes if changes else ""),
        "date": state["date"],
    }
    return {column: values[column] for column in COLUMNS}


def summary(folder: Path) -> list[dict[str, Any]]:
    """All parts that were ever run, at whatever commit; written down, too."""
    files = {part: folder / f"{part}.json" for part in (*PARTS, REST)}
    rows = [
        row(part, json.loads(file.read_text())) for part, file in files.items() if file.exists()
    ]
    write_atomically(folder / "summary.json", json.dumps(rows, indent=1))
    return rows


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The summary in Markdown."""
    lines = [
        "| " + " | ".join(column.replace("_", " ") for column in COLUMNS) + " |",
        "|"
        + "|".join("---" if column in ("part", "commit", "date") else "--:" for column in COLUMNS)
        + "|",
    ]
    for one in rows:
        cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in one.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_page(page: Path, text: str) -> None:
    """Put the table between its markers."""
    old = page.read_text(encoding="utf-8")
    before, after = old.partition(BEGIN)[0], old.partition(END)[2]
    write_atomically(page, f"{before}{BEGIN}\n{text}\n{END}{after}")


def run_part(
    folder: Path, part: str, files: list[Path], given: argparse.Namespace, deadline: float | None
) -> int:
    """Run what is left of a part, and say how far it got; 0 when nothing went wrong."""
    file = folder / f"{part}.json"
    if given.again:
        file.unlink(missing_ok=True)
    state = load(file, commit_of(given.root))
    if is_complete(state, given.seed):
        print(f"{part}: all of it has passed at this commit; --again runs it again")
        return 0
    recorder, code = Recorder(file, state, given.seed, deadline), 0
    if deadline is None or time.time() < deadline:
        if not state["results"]:
            recorder.failures.unlink(missing_ok=True)
        spread = ["-n", str(given.workers), "--dist", "load"] if given.workers else []
        options = ["-m", "chaos", "-p", "chaos_plugin", f"--rootdir={given.root}", *spread]
        code = int(pytest.main([*options, *map(str, files)], plugins=[recorder]))
    if not state["results"]:
        print(f"{part}: not begun")
        return INTERRUPTED if recorder.interrupted else code
    now = row(part, state)
    print(f"{part}: {now['passed']} of {now['tests']} passed, {now['failed']} failed,", end=" ")
    print(f"{now['left']} left: run it again to go on" if now["left"] else "nothing left")
    if now["failed"]:
        print(f"{part}: see {recorder.failures}")
    if recorder.interrupted:
        return INTERRUPTED
    return int(now["failed"] > 0 or code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/chaos.py", description=__doc__)
    parser.add_argument("--part", choices=[*PARTS, REST], help="this part alone")
    parser.add_argument("--minutes", type=float, help="start no test after so many minutes")
    seed = os.environ.get("TIDEGATE_SEED")
    parser.add_argument("--seed", type=int, default=seed, help="the seed of every random test")
    parser.add_argument("--again", action="store_true", help="forget what has passed")
    parser.add_argument("--list", action="store_true", help="show the parts and their files")
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE}, run nothing")
    parser.add_argument("--workers", type=int, default=2, help="so many tests at once; 0: here")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout")
    given = parser.parse_args()
    given.root = given.root.resolve()
    os.chdir(given.root)
    files = chaos_files(given.root)
    if given.list:
        for part, ones in files.items():
            print(part, *(f"  {one.relative_to(given.root)}" for one in ones), sep="\n")
        return 0
    folder = given.root / ".chaos"
    folder.mkdir(exist_ok=True)
    if given.write_docs:
        write_page(given.root / PAGE, table(summary(folder)))
        return 0
    if given.seed is not None:
        os.environ["TIDEGATE_SEED"] = str(given.seed)
    signal.signal(signal.SIGTERM, _interrupt)
    deadline = None if given.minutes is None else time.time() + given.minutes * 60
    code = 0
    for part in filter(files.get, [given.part] if given.part else files):
        code = max(code, run_part(folder, part, files[part], given, deadline))
        if code == INTERRUPTED:
            break
    print(table(summary(folder)))
    return code


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
