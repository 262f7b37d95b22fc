"""`make bench`: every side in one run, ratios printed; exit 1 when a bar is missed."""

from __future__ import annotations

import argparse
import sys

from benchmarks import (
    changes,
    events,
    graphs,
    history,
    lake,
    load,
    many,
    queues,
    service,
    status,
    verify,
    wide,
)
from benchmarks.report import Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--lake-rows", type=int, default=3_000_000)
    parser.add_argument("--memory-rows", type=int, default=10_000_000, help="0 leaves it out")
    parser.add_argument("--tables", type=int, default=200, help="0 leaves them out")
    parser.add_argument("--without-dlt", action="store_true", help="leave dlt out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--raw-events", type=int, default=100_000)
    parser.add_argument(
        "subject",
        nargs="?",
        choices=(
            "load",
            "lake",
            "queue",
            "status",
            "service",
            "history",
            "graph",
            "verify",
            "changes",
            "events",
        ),
        help="only this one",
    )
    options = parser.parse_args()
    report = Report()
    if options.subject in (None, "load"):
        _loads(report, options)
    if options.subject in (None, "lake"):
        print(f"load of {options.lake_rows:,} rows x 13 columns, Postgres to Iceberg, Spark warm")
        lake.run(report, rows=options.lake_rows, repeats=options.repeats)
    if options.subject in (None, "queue"):
        print(f"queue of {options.jobs:,} jobs that do nothing, one worker process")
        queues.run(
            report, jobs=options.jobs, repeats=options.repeats, pickups=200, history=1_000_000
        )
    if options.subject in (None, "status"):
        print(f"status of a table with {options.files:,} data files, from its metadata")
        status.run(report, files=options.files, repeats=options.repeats)
    if options.subject in (None, "service"):
        print("cached reads over HTTP, one process, with a token")
        service.run(report, seconds=5, connections=32)
    if options.subject in (None, "history"):
        print(f"questions to a history of {options.events:,} events")
        history.run(report, events=options.events)
    if options.subject in (None, "graph"):
        print(f"a graph of {options.tasks:,} tasks that do nothing, one worker")
        graphs.run(report, tasks=options.tasks, repeats=options.repeats)
    if options.subject in (None, "verify"):
        print(f"verify of {options.rows:,} rows x 13 columns, Postgres and Postgres")
        verify.run(report, rows=options.rows, repeats=options.repeats)
    if options.subject in (None, "changes"):
        print(f"late data: changes of {options.rows:,} rows x 13 columns, Postgres to Postgres")
        changes.run(report, rows=options.rows, repeats=options.repeats)
    if options.subject in (None, "events"):
        print(f"{options.raw_events:,} raw events into facts and five dimensions, Spark warm")
        events.run(report, events=options.raw_events, repeats=options.repeats)
    if report.missed:
        print(f"missed: {', '.join(report.missed)}")
    return 1 if report.missed else 0


def _loads(report: Report, options: argparse.Namespace) -> None:
    print(f"load of {options.rows:,} rows x 13 columns, Postgres to Postgres, Spark warm")
    load.run(
        report,
        rows=options.rows,
        memory_rows=options.memory_rows,
        repeats=options.repeats,
        with_dlt=not options.without_dlt,
    )
    wide.run(report, repeats=options.repeats)
    if options.tables:
        many.run(report, tables=options.tables, rows=1_000)


if __name__ == "__main__":
    sys.exit(main())
