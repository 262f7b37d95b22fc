"""A pipeline in a process of its own: `python -m tidegate.testing.child`, orders on its input.

The first line says which project and sync, and what stands in for its databases; every further
line is one run. Each is answered with one line. It ends when its input ends, or when it is killed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tidegate.core.errors import TidegateError


def main() -> None:
    """Answer order after order; what the user's code prints goes to the log instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    opening = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        answers.write(json.dumps(_answer(opening, json.loads(line))) + "\n")
        answers.flush()
    _close()


def _answer(opening: Mapping[str, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _run(opening, order)
    except TidegateError as error:
        kind = type(error).__name__
        return {"status": "failed", "kind": kind, "error": error.message, "hint": error.hint}
    except Exception as error:
        import traceback

        traceback.print_exc()
        kind = type(error).__name__
        return {"status": "failed", "kind": kind, "error": f"{kind}: {error}", "hint": None}


_opened: Any = None


def _run(opening: Mapping[str, Any], order: Mapping[str, Any]) -> dict[str, Any]:
    global _opened
    from tidegate.jobs.claim import open_heartbeat
    from tidegate.load.runner import Runner, RunOptions
    from tidegate.project import Project
    from tidegate.testing.pipeline_process import stop_predecessor

    if _opened is None:
        stop_predecessor()
        _opened = Project.open(opening["root"], profile=opening["profile"], **opening["overrides"])
    # Set here because a sync declared in Python has no place in the settings to override.
    sync = replace(_opened.sync(opening["sync"]), batch_rows=opening["batch_rows"])
    with open_heartbeat(_opened.context, "tidegate prove") as heartbeat:
        runner = Runner(_opened.context, heartbeat)
        report = runner.run(sync, RunOptions(full_refresh=order["full_refresh"]))
    return {
        "status": report.status,
        "rows": report.rows,
        "changed": report.outcome.changed,
        "loads": len(report.loads),
    }


def _close() -> None:
    if _opened is not None:
        with suppress(Exception):
            _opened.close()


if __name__ == "__main__":
    main()
