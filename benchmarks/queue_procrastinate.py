"""procrastinate's worker and submitter; run by the Python of its own environment."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import sys
import time
from typing import Any

import procrastinate
import uvloop

URL = json.loads(sys.stdin.readline())
# It warns of an app in the main module, which matters only to tasks found by their path.
logging.getLogger("procrastinate").setLevel(logging.ERROR)
PREPARED = {"prepare_threshold": 0}


def application(connector: Any) -> tuple[Any, Any]:
    app = procrastinate.App(connector=connector)

    @app.task(name="noop", queue="noop")
    async def noop() -> None:
        pass

    return app, noop


SUBMITTER, NOOP = application(procrastinate.SyncPsycopgConnector(conninfo=URL))


def install() -> None:
    SUBMITTER.schema_manager.apply_schema()


def enqueue(count: int) -> None:
    NOOP.batch_defer(*({} for _ in range(count)))


def submit() -> tuple[str, float]:
    job_id = NOOP.defer()
    return str(job_id), time.time()


async def _work(concurrency: int, *, tuned: bool, wait: bool) -> None:
    pool: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if tuned:
        # Every session that it can use is open, and no statement is planned twice.
        pool = {"min_size": concurrency + 2, "max_size": concurrency + 2, "kwargs": PREPARED}
        options = {"listen_notify": wait, "update_heartbeat_interval": 60.0}
    app, _ = application(procrastinate.PsycopgConnector(conninfo=URL, **pool))
    async with app.open_async():
        await app.run_worker_async(
            queues=["noop"],
            concurrency=concurrency,
            wait=wait,
            install_signal_handlers=False,
            **options,
        )


def work(concurrency: int, tuned: bool, wait: bool = False) -> None:
    """Until the queue is empty or, with `wait`, until killed."""
    run = uvloop.run if tuned else asyncio.run
    run(_work(concurrency, tuned=tuned, wait=wait))


def main() -> None:
    orders = {"install": install, "enqueue": enqueue, "submit": submit, "work": work}
    print(json.dumps(f"procrastinate {importlib.metadata.version('procrastinate')}"), flush=True)
    with SUBMITTER.open():
        for line in sys.stdin:
            name, options = json.loads(line)
            print(json.dumps(orders[name](**options)), flush=True)


if __name__ == "__main__":
    main()
