"""Tidegate history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tidegate.cli.job.screen import pairs
from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, TwentyAtMost, open_project
from tidegate.cli.output import moment, print_json, print_line, translated
from tidegate.core.errors import UsageError
from tidegate.core.units import counted, in_bytes
from tidegate.jobs.history.record import RunStatus, parameter_text, sparkline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tidegate.jobs.history.record import TaskEvent, TaskRecord, Trend


class ListByDefault(TyperGroup):
    """`tidegate history orders` means `tidegate history list orders`."""

    default = "list"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ListByDefault,
    help="See every run that is remembered: how it went, how long it took, what it was given.\n\n"
    "Without a command it lists them.\n\n"
    "Example: tidegate history orders --since 24h --status failed",
)


@app.command("list")
def list_(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A sync, a task or a table.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="Only runs that were given this."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only runs since then: 24h, 7 days, 2026-11-01, 2026-11-01T08:30."),
    ] = None,
    status: Annotated[
        list[RunStatus] | None, typer.Option("--status", help="Only runs that stand so.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only these, such as sync or task.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="All about one run, by its id or its beginning, or its job."
        ),
    ] = None,
    limit: TwentyAtMost = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first; with --id show all about one.

    Example: tidegate history list orders --since 24h --status failed
    """
    from tidegate.jobs.history.query import HistoryFilter
    from tidegate.jobs.history.record import run_document, whole_document

    if run is not None and (name or param or since or status or kind or limit):
        raise UsageError("--id was given beside other conditions", "give one of them")
    wanted = HistoryFilter(
        names=(name,) if name else (),
        kinds=kind or (),
        statuses=status or (),
        parameters=_parameters(param or []),
        since=None if since is None else _moment(since),
    )
    history = open_project(project, profile).history
    with translated("reading the history"):
        found = history.newest(wanted, limit or 20) if run is None else history.find_by_text(run)
        if run is not None and len(found) == 1:
            whole = history.find_task_by_id(found[0].id) or found[0]
            events = history.find_all_events(whole.id)
            if as_json:
                print_json(whole_document(whole, events))
            else:
                print_run(whole, events)
            return
    if as_json:
        print_json({"runs": [run_document(one) for one in found]})
    elif found:
        print_runs(found)
    else:
        print_line("no such runs" if name or param or since or status or kind else "no runs yet")


@app.command()
def trends(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="All of them when none is named.")
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Say how long everything takes, how often it fails, and what is slower than usual.

    Slower than usual is a run above the 95th percentile of the 30 before it and more than 20 %
    above their median.

    Example: tidegate history trends
    """
    from tidegate.jobs.history.record import trend_document

    history = open_project(project, profile).history
    with translated("reading the history"):
        found = history.trends(tuple(names or ()))
    if as_json:
        print_json({"trends": [trend_document(one) for one in found]})
    elif found:
        print_trends(found)
    else:
        print_line("no such runs in the last 8 weeks" if names else "no runs in the last 8 weeks")


def _parameters(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"--param {text!r} has no value", "write --param NAME=VALUE")
        found[name.strip()] = value
    return found


def _moment(text: str) -> datetime:
    """A moment, or a length of time before now."""
    from datetime import UTC, datetime, timedelta

    from tidegate.core.units import parse_duration

    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--since {text!r} is no time", 'write "24h", "7 days", 2026-11-01 or 2026-11-01T08:30'
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


WIDTH = 80
_PLAIN = ("sync", "task")
_SPARKS = 12
_SPARK_TIMES = (("run", "executor_run"), ("CPU", "executor_cpu"), ("GC", "jvm_gc"))
_SPARK_MEMORY = (("peak", "peak_memory"), ("spilled", "spilled"))
_SPARK_MOVED = (
    ("in", "input"),
    ("out", "output"),
    ("shuffle read", "shuffle_read"),
    ("written", "shuffle_write"),
)
_TOLD = ("rows", "bytes", "spark")


def print_runs(runs: Sequence[TaskRecord]) -> None:
    """A line a run, and one more for what went wrong."""
    from tidegate.jobs.job_view import short_ids

    ids = short_ids([one.id for one in runs])
    widest = max(len(text) for text in ids.values())
    room = WIDTH - widest - 45
    print_line(
        f"{'id':<{widest}} {'started (UTC)':<14} {'status':<10} {'took':>7} {'rows':>8}  what"
    )
    for one in runs:
        rows = "" if one.rows is None else short_number(one.rows)
        took = "" if one.seconds is None else took_text(one.seconds)
        name, given = what(one.kind, one.name), _given(one) if one.kind == "task" else ""
        whole = f"{name}({given})"
        fits = bool(given) and len(whole) <= room
        print_line(
            f"{ids[one.id]:<{widest}} {one.started_at:%m-%d %H:%M:%S} {one.status.value:<10} "
            f"{took:>7} {rows:>8}  {whole if fits else cut(name, room)}"
        )
        if given and not fits and not one.error:
            # An error names them itself.
            print_line("  " + cut(given, WIDTH - 2))
        if one.error:
            print_line("  " + cut(one.error.partition("\n")[0], WIDTH - 2))


def print_run(run: TaskRecord, events: Sequence[TaskEvent]) -> None:
    """Everything about one run."""
    print_line(f"run {run.id}: {run.kind} {run.name}, {run.status.value}")
    where = f"{run.host}, worker {run.worker_id}" if run.host else f"worker {run.worker_id}"
    metrics = {key: value for key, value in (run.metrics or {}).items() if key not in _TOLD}
    for label, value in (
        ("job", f"{run.job_id}, attempt {run.attempt}"),
        ("where", where),
        ("submitted", moment(run.submitted_at)),
        ("started", moment(run.started_at)),
        ("finished", moment(run.finished_at)),
        ("took", "" if run.seconds is None else took_text(run.seconds)),
        ("rows", "" if run.rows is None else f"{run.rows:,}"),
        ("bytes", "" if run.bytes is None else f"{run.bytes:,}"),
        ("given", _given(run)),
        ("metrics", pairs(metrics)),
        *zip(("spark", "", "", ""), spark_lines((run.metrics or {}).get("spark")), strict=False),
    ):
        if value:
            print_line(f"  {label + ':' if label else '':<10} {value}")
    print_line("what happened:")
    for event in events:
        print_line(f"  {moment(event.at)} {event.event.value}{_detail(event)}")
    if run.error:
        print_line("error:")
        for text in run.error.splitlines():
            print_line(f"  {text.strip()}")
    if run.traceback:
        print_line("traceback:")
        for text in run.traceback.rstrip().splitlines():
            print_line(f"  {text}")


def _given(run: TaskRecord) -> str:
    return ", ".join(f"{key}={parameter_text(one)}" for key, one in run.parameters.items())


def spark_lines(found: dict[str, Any] | None) -> list[str]:
    """What a run has cost Spark: its work, its time and memory, what it moved, and any doubts."""
    if not found:
        return []
    counts = [counted(found.get(f"{noun}s", 0), noun) for noun in ("job", "stage", "task")]
    if failed := found.get("failed_tasks"):
        counts.append(f"{failed:,} failed")
    times = [f"{name} {took_text(found.get(f'{key}_ms', 0) / 1000)}" for name, key in _SPARK_TIMES]
    doubts = [
        text
        for key, text in (
            ("shared_jobs", "some of it was the work of other runs"),
            ("partial", "the last stages only"),
        )
        if found.get(key)
    ]
    lines = (counts, times + _sizes(found, _SPARK_MEMORY), _sizes(found, _SPARK_MOVED), doubts)
    return [", ".join(line) for line in lines if line]


def _sizes(found: dict[str, Any], told: Sequence[tuple[str, str]]) -> list[str]:
    sizes = ((name, found.get(f"{key}_bytes")) for name, key in told)
    return [f"{name} {in_bytes(size)}" for name, size in sizes if size]


def _detail(event: TaskEvent) -> str:
    """What there is to say of an event; an error has a place of its own."""
    found = {key: value for key, value in (event.detail or {}).items() if key != "error"}
    action = found.pop("action", None)
    text = " ".join(part for part in (action, pairs(found)) if part)
    return f": {text}" if text else ""


def print_trends(trends: Sequence[Trend]) -> None:
    """A line for everything that runs; below, what took longer than it usually does."""
    room = WIDTH - 58
    print_line(
        f"{'what':<{room}} {'runs':>5} {'p50':>7} {'p95':>7} {'p99':>7} {'last':>7} "
        f"{'failed':>6} {'trend':<{_SPARKS}}".rstrip()
    )
    for one in trends:
        name = what(one.kind, one.name)
        if len(name) > room:
            # Long names are often told apart by their end alone.
            print_line(cut(name, WIDTH))
            name = ""
        seconds = [one.percentile(share) for share in (0.5, 0.95, 0.99)] + [one.last_seconds]
        times = " ".join(f"{'-' if it is None else took_text(it):>7}" for it in seconds)
        failed = one.failures[-1]
        broken = str(failed) if failed < 1_000_000 else short_number(failed)
        print_line(
            f"{name:<{room}} {len(one.seconds):>5} {times} "
            f"{broken:>6} {sparkline(one.seconds[-_SPARKS:])}".rstrip()
        )
    print_line("runs: the last 200 that were done; failed: attempts in the last 7 days")
    for one in trends:
        usual, last = one.usual_seconds, one.last_seconds
        if one.is_slower and usual is not None and last is not None:
            text = f" is slower than usual: {took_text(last)}, usually {took_text(usual)}"
            print_line(cut(what(one.kind, one.name), WIDTH - len(text)) + text)


def what(kind: str, name: str) -> str:
    """The thing that ran; of the rarer kinds the kind is told too."""
    return name if kind in _PLAIN else f"{kind} {name}"


def took_text(seconds: float) -> str:
    """A length of time in seven characters at most.

    >>> [took_text(one) for one in (0.0421, 7.25, 754.0, 40000.0)]
    ['42 ms', '7.2 s', '12m34s', '11h07m']
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}h{minutes:02}m" if hours < 100 else f"{hours / 24:.1f} d"


def short_number(number: int) -> str:
    """A number in eight characters at most.

    >>> [short_number(one) for one in (999_999, 12_345_678, 7_654_321_000)]
    ['999,999', '12.3 M', '7.7 G']
    """
    if number < 1_000_000:
        return f"{number:,}"
    for unit, size in (("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if number < size * 999.95:
            return f"{number / size:.1f} {unit}"
    return f"{number:.1e}"


def cut(text: str, width: int) -> str:
    """Text that fits, with an ellipsis for what does not."""
    return text if len(text) <= width else text[: width - 1] + "…"
