"""`tidegate why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line, print_table, translated
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.verify.report import Explanation, RowLoad, Values


def why(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The target table, or the sync's name.")
    ],
    key: Annotated[
        list[str], typer.Argument(metavar="COLUMN=VALUE…", help="The row's key, each column of it.")
    ],
    run_transform: Annotated[
        bool,
        typer.Option("--run-transform", help="Apply the transformation to this row; starts Spark."),
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Say why a row is as it is, or is not there, and which load brought it.

    Example: tidegate why warehouse:raw.orders id=42
    """
    given: dict[str, str] = {}
    for text in key:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UsageError(f"{text!r} is not a column with a value", "write id=42")
        if name in given:
            raise UsageError(f"{name} was given twice", "give each column of the key once")
        given[name] = value
    with translated(f"looking for a row of {target}"), open_project(project, profile) as opened:
        found = opened.explain(target, given, run_transform=run_transform)
    if as_json:
        print_json(found)
        return
    _print(found)


def _print(found: Explanation) -> None:
    key = " ".join(f"{name}={value}" for name, value in found.key.items())
    print_line(f"{found.target} {key}: {found.reason}")
    print_line(f"  {found.sentence}")
    for note in found.notes:
        print_line(f"  note: {note}")
    if found.hint:
        print_line(f"  fix: {found.hint}")
    print_line(f"  source: {_row(found.source_row)}")
    at = "" if found.snapshot is None else f" (lake at snapshot {found.snapshot})"
    print_line(f"  target{at}: {_row(found.target_row)}")
    if found.carrier is not None:
        for line in _carried(found.carrier):
            print_line(f"  {line}")
    if found.differences:
        rows = [(one.column, _value(one.source), _value(one.target)) for one in found.differences]
        print_table(("column", "source", "target"), rows)


def _carried(carrier: RowLoad) -> list[str]:
    when = f"{carrier.moved_at:%Y-%m-%d %H:%M:%S%z} by {carrier.moved_by}"
    if carrier.update_id is None:
        return [f"there since {when} moved the watermark ({carrier.reason})"]
    which = f"brought by: {carrier.update_id} ({carrier.reason}), {when}"
    job = f", job {carrier.job_id}" if carrier.job_id else ""
    lines = [which, f"  attempt {carrier.attempt_id}{job}"]
    if carrier.others:
        most = "at least " if carrier.others >= 99 else ""
        lines.append(f"  the last of them: {most}{carrier.others} more may have brought it")
    return lines


def _row(values: Values | None) -> str:
    if values is None:
        return "no such row"
    return " ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: str | None) -> str:
    return "NULL" if value is None else value
