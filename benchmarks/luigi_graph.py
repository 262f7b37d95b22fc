"""The graph as Luigi's tasks, one worker at a central scheduler; run in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import luigi

DONE: set[str] = set()


class Step(luigi.Task):  # type: ignore[misc]
    """A task that does nothing, and knows at no cost whether it is done."""

    layer = luigi.IntParameter()
    number = luigi.IntParameter()
    width = luigi.IntParameter()
    run_id = luigi.Parameter()

    def requires(self) -> list[Step]:
        if not self.layer:
            return []
        numbers = sorted({self.number, (self.number + 1) % self.width})
        return [self.clone(layer=self.layer - 1, number=number) for number in numbers]

    def run(self) -> None:
        DONE.add(self.task_id)

    def complete(self) -> bool:
        return self.task_id in DONE


def work(port: int, layers: int, width: int, run_id: str) -> float:
    """Schedule and run the whole graph; the seconds that took."""
    roots = [Step(layers - 1, number, width, run_id) for number in range(width)]
    started = time.perf_counter()
    done = luigi.build(
        roots,
        workers=1,
        local_scheduler=False,
        scheduler_host="127.0.0.1",
        scheduler_port=port,
        log_level="ERROR",
    )
    took = time.perf_counter() - started
    if not done or len(DONE) != layers * width:
        raise RuntimeError(f"{len(DONE)} of {layers * width} tasks are done")
    DONE.clear()
    return took


def main() -> None:
    json.loads(sys.stdin.readline())
    print(json.dumps(f"luigi {importlib.metadata.version('luigi')}"), flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        print(json.dumps(work(**order)), flush=True)


if __name__ == "__main__":
    main()
