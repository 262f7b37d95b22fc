"""One instance of the second phase, in a process of its own: warm, then at work when told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.events_project import EventsProject


def main() -> None:
    """`FOLDER NAME`: says when it is warm, waits for a line, works, and says when it ended."""
    folder, name = sys.argv[1:]
    bench = EventsProject(Path(folder))
    bench.process(name)
    print("warm", flush=True)
    sys.stdin.readline()
    done = bench.process(name)
    print(f"{time.time()} {done.done + done.failed}", flush=True)
    bench.project.close()


if __name__ == "__main__":
    main()
