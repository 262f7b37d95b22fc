"""Events into facts: beside the design as published, two instances beside one, and no work."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from benchmarks.events_instance import Instance
from benchmarks.events_project import EventsProject, write_template
from benchmarks.events_reference import Reference
from benchmarks.load import best, timed
from benchmarks.report import Report
from tidegate.events.provision import provision
from tidegate.postgres.connection import Connection

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'tidegate process' AND wait_event_type = 'Lock'
"""
WARM_EVENTS = 5_000


def run(report: Report, *, events: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        write_template(folder)
        bench = EventsProject(folder)
        try:
            with bench.connect() as connection:
                totals = bench.fill(connection, events)
                _rates(report, bench, connection, repeats, totals.facts)
                _round_trips(report, bench, connection)
                bench.project.context.spark.stop()
                _instances(report, bench, connection, folder, repeats)
                _agrees(connection, totals.facts)
        finally:
            bench.project.close()
            bench.project.context.databases.embedded.stop()


def _rates(
    report: Report, bench: EventsProject, connection: Connection, repeats: int, facts: int
) -> None:
    """Events a second: ours before and after the others', Spark warm."""
    bench.reset(connection, WARM_EVENTS)
    bench.process()
    ours = [best(repeats, lambda: bench.reset(connection), bench.process)]
    _agrees(connection, facts)
    bench.reset(connection)
    with bench.connect() as own:
        published = timed(Reference(bench, own).run)
    _agrees(connection, facts)
    ours.append(best(repeats, lambda: bench.reset(connection), bench.process))
    _agrees(connection, facts)
    count = _count(connection)
    report.note(f"tidegate: {count / min(ours):,.0f} events/s ({min(ours):.2f} s)")
    report.note(f"as published: {count / published:,.0f} events/s ({published:.2f} s)")
    report.ratio("events/s, tidegate / as published", published / min(ours), at_least=10)


def _round_trips(report: Report, bench: EventsProject, connection: Connection) -> None:
    """Counted on the wire: the server says once for each that it is ready again."""
    with tempfile.TemporaryFile() as trace:
        connection.pgconn.trace(trace.fileno())
        provision(bench.project.context, bench.events, connection)
        connection.pgconn.untrace()
        trace.seek(0)
        trips = trace.read().count(b"ReadyForQuery")
    report.value("phase 1 with nothing to do", trips, "round trips", at_most=5)


def _instances(
    report: Report, bench: EventsProject, connection: Connection, folder: Path, repeats: int
) -> None:
    instances = [Instance.start(folder, number) for number in (1, 2)]
    try:
        for one in instances:
            bench.reset(connection, WARM_EVENTS)
            one.tell()
            one.end()
        # One after the other in turn, since the machine may have other work for a while.
        tries = [
            [_side_by_side(report, bench, connection, instances[:count]) for count in (1, 2)]
            for _ in range(repeats)
        ]
    finally:
        for one in instances:
            one.stop()
    one, two = (min(found) for found in zip(*tries, strict=True))
    report.ratio("two instances / one", one / two, at_least=1.2)


def _side_by_side(
    report: Report, bench: EventsProject, connection: Connection, instances: list[Instance]
) -> float:
    """How long they take together, from their start to the end of the last."""
    bench.reset(connection)
    finished = threading.Event()
    waited: list[float] = []
    watcher = threading.Thread(target=_watch, args=(bench, finished, waited))
    watcher.start()
    started = time.time()
    for one in instances:
        one.tell()
    ends = [one.end() for one in instances]
    finished.set()
    watcher.join()
    seconds = max(moment for moment, _ in ends) - started
    shares = " and ".join(f"{count:,}" for _, count in ends)
    report.note(
        f"instances at once: {len(instances)}, {seconds:.2f} s ({shares} events), "
        f"{sum(waited):.2f} s in wait for locks"
    )
    return seconds


def _watch(bench: EventsProject, finished: threading.Event, waited: list[float]) -> None:
    """How long sessions waited for locks of each other, by looking often."""
    with bench.connect() as connection:
        last = time.perf_counter()
        while not finished.wait(0.01):
            row = connection.execute(WAITING).fetchone()
            now = time.perf_counter()
            waited.append((now - last) * (row[0] if row else 0))
            last = now


def _count(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM raw_events WHERE status <> 'pending'").fetchone()
    return int(row[0]) if row else 0


def _agrees(connection: Connection, facts: int) -> None:
    row = connection.execute("SELECT count(*) FROM warehouse.fact_events").fetchone()
    pending = connection.execute(
        "SELECT count(*) FROM raw_events WHERE status = 'pending'"
    ).fetchone()
    if row != (facts,) or pending != (0,):
        raise RuntimeError(f"{row} facts and {pending} pending events, not {facts} and none")
