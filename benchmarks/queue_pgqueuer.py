"""pgqueuer's worker and submitter; run by the Python of its own environment."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import time
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.types import QueueExecutionMode

URL = json.loads(sys.stdin.readline())


class Submitter:
    """One session that is kept open."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._queries: Queries | None = None

    def install(self) -> None:
        self._runner.run((self._open()).install())

    def enqueue(self, count: int) -> None:
        self._runner.run(self._open().enqueue(["noop"] * count, [None] * count, [0] * count))

    def submit(self) -> tuple[str, float]:
        ids = self._runner.run(self._open().enqueue("noop", None))
        return str(ids[0]), time.time()

    def _open(self) -> Queries:
        if self._queries is None:
            connection = self._runner.run(asyncpg.connect(URL))
            self._queries = Queries.from_asyncpg_connection(connection)
        return self._queries


async def _work(batch: int, *, tuned: bool, wait: bool) -> None:
    options: dict[str, Any] = {}
    if tuned:
        options = {
            "log_aggregation_interval": timedelta(0),
            "heartbeat_timeout": timedelta(minutes=5),
        }
    connection = await asyncpg.connect(URL)
    queuer = PgQueuer.from_asyncpg_connection(connection)

    @queuer.entrypoint("noop")
    async def noop(job: Any) -> None:
        pass

    if tuned:
        await Queries.from_asyncpg_connection(connection).optimize_autovacuum()
    await queuer.qm.run(
        batch_size=batch,
        mode=QueueExecutionMode.continuous if wait else QueueExecutionMode.drain,
        **options,
    )


def work(batch: int, tuned: bool, wait: bool = False) -> None:
    """Until the queue is empty or, with `wait`, until killed."""
    run = uvloop.run if tuned else asyncio.run
    run(_work(batch, tuned=tuned, wait=wait))


def main() -> None:
    submitter = Submitter()
    orders = {
        "install": submitter.install,
        "enqueue": submitter.enqueue,
        "submit": submitter.submit,
        "work": work,
    }
    print(json.dumps(f"pgqueuer {importlib.metadata.version('pgqueuer')}"), flush=True)
    for line in sys.stdin:
        name, options = json.loads(line)
        print(json.dumps(orders[name](**options)), flush=True)


if __name__ == "__main__":
    main()
