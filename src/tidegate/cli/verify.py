"""`tidegate verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.options import (
    HERE,
    AllSyncs,
    AsJson,
    Profile,
    ProjectFolder,
    SyncNames,
    choose_syncs,
    open_project,
)
from tidegate.cli.output import print_error, print_json, print_line
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.model.verification import Difference, Verification


def verify(
    names: SyncNames = None,
    all_: AllSyncs = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Compare source and target up to the watermark, by checksums made inside the databases.

    Example: tidegate verify --all
    """
    from tidegate.pipeline.verify import verify_sync

    opened = open_project(project, profile)
    chosen = opened.expand(choose_syncs(names or [], all_, opened.names))
    documents: list[Any] = []
    worst = 0
    for sync in chosen:
        try:
            found = verify_sync(opened.context, sync)
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
    lines += [f"  note: {note}" for note in found.notes]
    return lines + ([f"  fix: {found.hint}"] if found.hint else [])


def _differs(difference: Difference) -> str:
    least = "" if difference.complete else "at least "
    counts = (
        (difference.missing, "missing"),
        (difference.extra, "extra"),
        (difference.different, "different"),
    )
    return ", ".join(f"{least}{count:,} {what}" for count, what in counts if count)


def _examples(difference: Difference) -> list[str]:
    keys = (
        ("missing", difference.missing_keys),
        ("extra", difference.extra_keys),
        ("different", difference.different_keys),
    )
    return [f"  {what}: {' '.join(some)}" for what, some in keys if some]
