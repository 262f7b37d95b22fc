"""One instance of the second phase, in a process of its own: warm, then at work when told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.events_project import EventsProject


@dataclass(frozen=True, slots=True)
class Instance:
    """The process, as the one sees it that started it."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, folder: Path, number: int) -> Instance:
        command = [
            sys.executable,
            "-m",
            "benchmarks.events_instance",
            str(folder),
            str(number) * 16,
        ]
        return cls(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # Of one core each: what is asked is whether they get in each other's way.
                env={**os.environ, "TIDEGATE_SPARK__MASTER": "local[1]"},
            )
        )

    def tell(self) -> None:
        """Let it work until the queue is empty."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> tuple[float, int]:
        """When it was done, and with how many events."""
        assert self.process.stdout is not None
        moment, count = self.process.stdout.readline().split()
        return float(moment), int(count)

    def stop(self) -> None:
        self.process.communicate()


def main() -> None:
    """`FOLDER NAME`: works once for each line that it is sent."""
    folder, name = sys.argv[1:]
    bench = EventsProject(Path(folder))
    for _ in sys.stdin:
        done = bench.process(name)
        print(f"{time.time()} {done.done + done.failed}", flush=True)
    bench.project.close()


if __name__ == "__main__":
    main()
