"""The queue: jobs that do nothing, one worker process, beside bare SQL and two other queues."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import queue_depth, queue_pickup
from benchmarks.queue_bare import TABLES, BareQueue
from benchmarks.queue_peers import PeerQueue, install
from benchmarks.queue_side import Queue, measure
from benchmarks.queue_tidegate import TidegateQueue
from benchmarks.report import Report
from tidegate.postgres.connection import Connection
from tidegate.project import Project

SETTINGS = """
[project]
name = "bench"
[connections]
bare = "embedded:bare"
procrastinate = "embedded:procrastinate"
pgqueuer = "embedded:pgqueuer"
"""
PEERS = ("procrastinate", "pgqueuer")
DURABILITY = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_level")


@dataclass(frozen=True, slots=True)
class Side:
    """A queue, worked in one way."""

    queue: Queue
    settings: str


def run(report: Report, *, jobs: int, repeats: int, pickups: int, history: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        (folder / "tidegate.toml").write_text(SETTINGS)
        project = Project.open(folder)
        try:
            with ExitStack() as stack:
                _measure(stack, project, folder, report, jobs, repeats, pickups, history)
        finally:
            project.close()
            project.context.databases.embedded.stop()


def _measure(
    stack: ExitStack,
    project: Project,
    folder: Path,
    report: Report,
    jobs: int,
    repeats: int,
    pickups: int,
    history: int,
) -> None:
    context = project.context
    context.control_id()
    control = stack.enter_context(context.plane.connect())
    bare = stack.enter_context(project.connect("bare"))
    bare.execute(TABLES)
    addresses = {name: context.databases.portable_conninfo(name) for name in ("bare", *PEERS)}
    versions = {name: install(name, addresses[name]) for name in PEERS}
    report.note(f"server: {_server(control)}; {', '.join(versions.values())}")

    def ours(concurrency: int) -> TidegateQueue:
        queue = TidegateQueue(folder, context.plane, control, concurrency)
        return stack.enter_context(closing(queue))

    def peer(name: str, **options: Any) -> PeerQueue:
        connection = stack.enter_context(project.connect(name))
        queue = PeerQueue(name, addresses[name], connection, options)
        return stack.enter_context(closing(queue))

    sides = {
        f"bare, batch {batch}": Side(
            BareQueue(addresses["bare"], bare, batch), "psycopg, one session, prepared"
        )
        for batch in (1, 10, 100)
    }
    sides |= {
        f"tidegate, {count}": Side(ours(count), f"worker --burst --concurrency {count}")
        for count in (1, 10)
    }
    for count in (1, 10):
        sides[f"procrastinate, {count}"] = Side(
            peer("procrastinate", concurrency=count, tuned=False), f"concurrency={count}"
        )
        sides[f"procrastinate tuned, {count}"] = Side(
            peer("procrastinate", concurrency=count, tuned=True),
            f"concurrency={count}, uvloop, prepare_threshold=0, listen_notify=False, full pool",
        )
    for batch in (10, 100):
        sides[f"pgqueuer, batch {batch}"] = Side(
            peer("pgqueuer", batch=batch, tuned=False), f"asyncpg, batch_size={batch}"
        )
        sides[f"pgqueuer tuned, batch {batch}"] = Side(
            peer("pgqueuer", batch=batch, tuned=True),
            f"batch_size={batch}, uvloop, optimize_autovacuum, log_aggregation_interval=0",
        )
    _throughput(report, sides, jobs, repeats)
    idle = ours(1)
    queues = {
        "tidegate": idle,
        "procrastinate": sides["procrastinate, 1"].queue,
        "pgqueuer": sides["pgqueuer, batch 10"].queue,
    }
    queue_pickup.run(report, queues, addresses["bare"], bare, pickups)  # type: ignore[arg-type]
    # Its worker would take the jobs that are to be counted.
    idle.close()
    idle.empty()
    queue_depth.run(report, context.plane, control, history)


def _throughput(report: Report, sides: Mapping[str, Side], jobs: int, repeats: int) -> None:
    """Each side once, then each again: what disturbs the machine disturbs all of them."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            rates[name].append(measure(side.queue, jobs))
    median = {name: statistics.median(rates[name]) for name in sides}
    for name, side in sides.items():
        spread = f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}"
        report.note(f"{name}: {median[name]:,.0f} jobs/s ({spread}) [{side.settings}]")
    for other, bar in (("procrastinate, 1", 3.0), ("procrastinate tuned, 1", 3.0)):
        report.ratio(f"one by one / {other}", median["tidegate, 1"] / median[other], at_least=bar)
    report.ratio(
        "one by one / bare, batch 1", median["tidegate, 1"] / median["bare, batch 1"], at_least=0.8
    )
    report.ratio(
        "batched / bare, batch 10", median["tidegate, 10"] / median["bare, batch 10"], at_least=0.8
    )
    for other in ("pgqueuer, batch 10", "pgqueuer tuned, batch 10"):
        report.ratio(f"batched / {other}", median["tidegate, 10"] / median[other], at_least=1.0)
    ratio = median["tidegate, 10"] / median["procrastinate tuned, 10"]
    report.note(f"batched / procrastinate tuned, 10: {ratio:.2f} x")


def _server(connection: Connection) -> str:
    found = (connection.execute(f"SHOW {name}").fetchone() for name in DURABILITY)
    values = [str(row[0]) for row in found if row]
    return ", ".join(f"{name} {value}" for name, value in zip(DURABILITY, values, strict=True))
