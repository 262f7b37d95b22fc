"""`tidegate verify`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import (
    HERE,
    AllowRemoval,
    AllSyncs,
    AsJson,
    Profile,
    ProjectFolder,
    SyncNames,
    choose_syncs,
    open_project,
)
from tidegate.cli.output import print_error, print_json, print_line
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.verify.report import RowDifference, Verification


def verify(
    names: SyncNames = None,
    all_: AllSyncs = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Load the differing ranges of keys again; rows gone from the source leave.",
        ),
    ] = False,
    allow_removal: AllowRemoval = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Compare source and target up to the watermark, by checksums made inside the databases.

    With --repair what differs is put right, whatever cursor it has. Exit code 0 means equal or
    repaired, 1 that something differs.

    Example: tidegate verify orders --repair
    """
    from tidegate.cli.sync.run import PATIENCE_SECONDS, leave
    from tidegate.jobs.claim import open_heartbeat
    from tidegate.jobs.shutdown import Shutdown
    from tidegate.verify.repair import repair_sync
    from tidegate.verify.verify import verify_sync

    if allow_removal and not repair:
        raise UsageError("--allow-removal is for --repair", "add --repair, or leave it out")
    opened = open_project(project, profile)
    chosen = opened.expand(choose_syncs(names or [], all_, opened.names))
    documents: list[Any] = []
    worst = 0
    with ExitStack() as stack:
        check = partial(verify_sync, opened.context)
        if repair:
            heartbeat = stack.enter_context(open_heartbeat(opened.context, "tidegate verify"))
            stack.enter_context(
                Shutdown(partial(leave, opened, heartbeat), patience_seconds=PATIENCE_SECONDS)
            )
            check = partial(
                repair_sync, opened.context, heartbeat=heartbeat, allow_removal=allow_removal
            )
        for sync in chosen:
            try:
                found = check(sync)
            except TidegateError as error:
                worst = error.exit_code if worst in (0, error.exit_code) else 1
                documents.append({"sync": sync.name, "error": error.message, "hint": error.hint})
                if not as_json:
                    print_error(
                        TidegateError(f"{sync.name}: {error.message}", error.hint), as_json=False
                    )
                continue
            documents.append(found)
            if not found.intact:
                worst = 1
            if not as_json:
                for line in _lines(found):
                    print_line(line)
    if as_json:
        print_json(documents)
    opened.close()
    if worst:
        raise typer.Exit(worst)


def _lines(found: Verification) -> list[str]:
    waiting = f", {found.not_yet_loaded:,} not yet loaded" if found.not_yet_loaded else ""
    if found.rejected:
        waiting += f", {found.rejected:,} rejected"
    spark = " (transformed again with Spark)" if found.used_spark else ""
    if found.snapshot is not None:
        waiting += f", lake at snapshot {found.snapshot}"
    if found.verdict == "changed since the last run":
        lines = [f"{found.sync}: {found.verdict}{waiting}{spark}"]
    elif found.difference is not None:
        first = f"{found.sync}: {_differs(found.difference)} of {found.source_rows:,} rows"
        lines = [f"{first}{waiting}{spark}", *_examples(found.difference)]
    elif found.verdict == "equal":
        lines = [f"{found.sync}: {found.source_rows:,} rows equal{waiting}{spark}"]
    else:
        lines = [f"{found.sync}: {found.verdict}"]
    if found.repair is not None and found.repair.difference is not None:
        repair = found.repair
        was = _differs(found.repair.difference)
        plural = "s" if repair.loads > 1 else ""
        text = f"repaired: {was}, in {repair.loads} load{plural} of {repair.rows:,} rows"
        lines.insert(0, f"{found.sync}: {text}")
    lines += [f"  note: {note}" for note in found.notes]
    return lines + ([f"  fix: {found.hint}"] if found.hint else [])


def _differs(difference: RowDifference) -> str:
    least = "" if difference.complete else "at least "
    counts = (
        (difference.missing, "missing"),
        (difference.extra, "extra"),
        (difference.different, "different"),
    )
    return ", ".join(f"{least}{count:,} {what}" for count, what in counts if count)


def _examples(difference: RowDifference) -> list[str]:
    keys = (
        ("missing", difference.missing_keys),
        ("extra", difference.extra_keys),
        ("different", difference.different_keys),
    )
    return [f"  {what}: {' '.join(some)}" for what, some in keys if some]
