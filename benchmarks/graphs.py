"""A graph of tasks that do nothing: what scheduling one costs, beside Luigi's central scheduler.

Both sides get the same graph, layers of tasks that each require two of the layer below, and work
it one at a time in one worker process. Luigi: `luigid` on loopback, its worker in a process that
is warm, its tasks done in memory. Ours: the graph queued in Postgres as `tidegate run --queue` does
it, and `tidegate worker`, which claims, works and marks each task durably and writes its history.
The queue is the fair match for a central scheduler: others could join in on both sides. The same
graph within one process (`tidegate run`) is measured too.

Counted is what it takes to tell the scheduler of the graph, and from the first claim to the last
end. No interpreter's start counts, for nobody.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.peers import Peer
from benchmarks.queue_side import settle, span_of
from benchmarks.report import Report
from tidegate.config.task import Step
from tidegate.jobs.job import TASK
from tidegate.postgres.connection import Connection
from tidegate.project import Project

LAYERS = 10
SETTINGS = """
[project]
name = "bench"
"""
PIPELINES = """
import tidegate as tg

def below(layer: int, number: int, width: int, run_id: str):
    if not layer:
        return []
    numbers = sorted({number, (number + 1) % width})
    return [tg.needs(step, layer=layer - 1, number=other) for other in numbers]

@tg.task(requires=below)
def step(ctx, layer: int, number: int, width: int, run_id: str):
    pass
"""
_SPAN = """
SELECT count(*), extract(epoch FROM max(j.finished_at) - min(a.started_at))::float8
FROM {schema}.jobs j JOIN {schema}.job_attempts a USING (job_id)
WHERE j.status = 'done' AND j.payload->'parameters'->>'run_id' = '{run_id}'
"""


def run(report: Report, *, tasks: int, repeats: int) -> None:
    width = max(1, tasks // LAYERS)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        folder = Path(name)
        (folder / "tidegate.toml").write_text(SETTINGS)
        (folder / "pipelines.py").write_text(PIPELINES)
        project = Project.open(folder)
        try:
            project.context.control_id()
            with (
                project.context.plane.connect() as control,
                _central_scheduler(folder) as port,
                Peer("luigi", (), _SCRIPT, None) as luigi,
            ):
                _measure(report, project, control, folder, luigi, port, width, repeats)
        finally:
            project.close()
            project.context.databases.embedded.stop()


_SCRIPT = Path(__file__).with_name("luigi_graph.py")


def _measure(
    report: Report,
    project: Project,
    control: Connection,
    folder: Path,
    luigi: Peer,
    port: int,
    width: int,
    repeats: int,
) -> None:
    """Each side once, then each again: what disturbs the machine disturbs all of them."""
    count = LAYERS * width
    times: dict[str, list[float]] = {"luigi": [], "queued": [], "queueing": [], "here": []}
    for number in range(repeats):
        order = {"port": port, "layers": LAYERS, "width": width, "run_id": f"l{number}"}
        times["luigi"].append(float(luigi.ask(order)))
        settle(control)
        submitted, worked = _queued(project, control, folder, width, f"q{number}")
        times["queued"].append(submitted + worked)
        times["queueing"].append(submitted)
        settle(control)
        times["here"].append(_here(project, width, f"h{number}"))
    each = {name: statistics.median(found) / count * 1000 for name, found in times.items()}
    names = {
        "luigi": f"{luigi.settings}, luigid and one worker",
        "queued": "tidegate, queue and one worker",
        "queueing": "of which queueing the graph",
        "here": "tidegate run, in one process",
    }
    for name, said in names.items():
        found = [one / count * 1000 for one in times[name]]
        report.note(f"{said}: {each[name]:.2f} ms a task ({min(found):.2f} to {max(found):.2f})")
    report.ratio("overhead a task, queued / luigi", each["queued"] / each["luigi"], at_most=1)
    report.note(f"in one process / luigi: {each['here'] / each['luigi']:.2f} x")


def _roots(project: Project, width: int, run_id: str) -> list[Step]:
    return [
        project.task_run(
            "step", {"layer": LAYERS - 1, "number": number, "width": width, "run_id": run_id}
        )
        for number in range(width)
    ]


def _queued(
    project: Project, control: Connection, folder: Path, width: int, run_id: str
) -> tuple[float, float]:
    """Seconds to queue the graph, and from the first claim to the last end."""
    roots = _roots(project, width, run_id)
    started = time.perf_counter()
    project.submit_graph(roots)
    submitted = time.perf_counter() - started
    command = [sys.executable, "-m", "tidegate.cli.main", "worker", "--burst", "--concurrency", "1"]
    subprocess.run([*command, "--kinds", TASK], cwd=folder, check=True, capture_output=True)
    schema = project.context.plane.schema
    return submitted, span_of(control, _SPAN.format(schema=schema, run_id=run_id), LAYERS * width)


def _here(project: Project, width: int, run_id: str) -> float:
    roots = _roots(project, width, run_id)
    started = time.perf_counter()
    report = project.run_graph(roots, concurrency=1)
    took = time.perf_counter() - started
    if report.exit_code or len(report.ends) != LAYERS * width:
        raise RuntimeError(f"{len(report.failed)} tasks failed")
    return took


@contextmanager
def _central_scheduler(folder: Path) -> Iterator[int]:
    """`luigid` on a free port of loopback, answering."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    code = "from luigi.cmdline import luigid; luigid()"
    state = str(folder / "luigi-state.pickle")
    arguments = ["--address", "127.0.0.1", "--port", str(port), "--state-path", state]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"luigid ended with {process.returncode}")
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/task_list?data=%7B%7D", timeout=1)
            return
        time.sleep(0.1)
    raise RuntimeError("luigid does not answer")
