"""`tidegate event generate`."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line, working
from tidegate.cli.translation import translated
from tidegate.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.pipeline.event_filling import Filled
    from tidegate.pipeline.event_generation import Generation


def generate(
    count: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many events.")] = 10_000,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same events; else new ones.")
    ] = None,
    duplicates: Annotated[
        float, typer.Option(min=0, max=1, help="The share that repeats others, in other words.")
    ] = 0.02,
    malformed: Annotated[
        float, typer.Option(min=0, max=1, help="The share that is broken and must fail.")
    ] = 0.01,
    late: Annotated[
        float, typer.Option(min=0, max=1, help="The share that is months older than the rest.")
    ] = 0.0,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How many days the events are spread over.")
    ] = 60,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The day before which all of them lie; today."),
    ] = None,
    totals: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what must come out to a file.")
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Make up events for the project's model and add them to the raw ones.

    Example: tidegate event generate --count 100000 --seed 7
    """
    from tidegate.pipeline.event_filling import generate_events
    from tidegate.pipeline.event_generation import Generation

    if duplicates + malformed > 1:
        raise UsageError("--duplicates and --malformed are more than all", "lower one of them")
    plan = Generation(
        count,
        secrets.randbelow(2**31) if seed is None else seed,
        (until or datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC),
        days,
        duplicates,
        malformed,
        late,
    )
    with (
        open_project(project, profile) as opened,
        translated("making up events"),
        working(f"making up {count:,} events"),
    ):
        filled = generate_events(opened.context, plan)
    document = _document(plan, filled)
    if totals is not None:
        _write(totals, document)
    if as_json:
        print_json(document)
        return
    print_line(_line(plan, filled))


def _document(plan: Generation, filled: Filled) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "until": f"{plan.until:%Y-%m-%d}",
        "days": plan.days,
        "table": f"{filled.connection}:{filled.table}",
        "added": filled.added,
        **filled.totals.document(),
    }


def _line(plan: Generation, filled: Filled) -> str:
    totals = filled.totals
    known = totals.events - filled.added
    return (
        f"added {filled.added:,} events to {filled.connection}:{filled.table}"
        + (f" ({known:,} were there already)" if known else "")
        + f": {totals.facts:,} facts, {totals.duplicates:,} duplicates, "
        f"{totals.malformed.total():,} that fail; seed {plan.seed}"
    )


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TidegateError(
            f"{path} cannot be written: {error.strerror}; the events were added",
            "give --totals a file that you may write, and the same --seed",
        ) from None
