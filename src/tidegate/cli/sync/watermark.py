"""`tidegate watermark`: how far each sync has got, and moving it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line, print_table, translated
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.core.watermark import Watermark

app = typer.Typer(
    no_args_is_help=True,
    help="See how far each sync has got, and move it by hand.\n\n"
    'Example: tidegate watermark rewind orders 2026-11-01 --reason "fix tax"',
)

SyncName = Annotated[str, typer.Argument(metavar="NAME", help="The sync.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
_START = "at the start"


@app.command("list")
def list_(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """List the watermark of every sync of the project.

    Example: tidegate watermark list
    """
    from tidegate.admin.watermark import list_watermarks

    opened = open_project(project, profile)
    with translated("reading the watermarks"):
        syncs = {sync.name: sync for sync in opened.expanded(from_ledger=True).syncs}
        found = list_watermarks(opened.context, syncs, opened.groups)
    if as_json:
        print_json(
            [
                {
                    "sync": one.sync,
                    "target": one.target,
                    "declared": one.declared,
                    "problem": one.problem,
                    **(_document(one.watermark) if one.watermark else {}),
                }
                for one in found
            ]
        )
    elif not found:
        print_line("the project declares no sync, so there is no watermark")
    else:
        print_table(
            ("sync", "target", "watermark", "rows", "generation", "version", "moved"),
            (
                (one.sync, one.target, f"({one.problem})")
                if one.watermark is None
                else (
                    one.sync if one.declared else f"{one.sync} (not declared)",
                    one.target,
                    _value(one.watermark),
                    f"{one.watermark.rows_synced:,}",
                    one.watermark.generation,
                    one.watermark.version,
                    _moment(one.watermark.updated_at),
                )
                for one in found
            ),
        )
    if any(one.problem for one in found):
        raise typer.Exit(1)


@app.command()
def show(
    name: SyncName,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many moves to print.")] = 10,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Print one watermark and its last moves: when, by whom and why.

    Example: tidegate watermark show orders
    """
    opened = open_project(project, profile)
    watermark = opened.watermark(name)
    with translated(f"reading the watermark of {name}"):
        found, moves = watermark.get(), watermark.moves(limit)
    if as_json:
        document = {"sync": name, "target": str(watermark.sync.target), **_document(found)}
        print_json({**document, "moves": moves})
        return
    position = "" if found.position is None else ", ".join(found.position)
    for label, value in (
        ("sync", name),
        ("target", watermark.sync.target),
        ("watermark", _value(found)),
        ("cursor type", found.cursor_type or "not known before the first load"),
        ("position", position or "no tie is open"),
        ("generation", found.generation),
        ("version", found.version),
        ("rows", f"{found.rows_synced:,}"),
        ("last load", found.update_id or "none"),
        ("moved", _moment(found.updated_at) or "never"),
    ):
        print_line(f"{label + ':':<13} {value}")
    if moves:
        print_line("")
        print_table(
            ("moved at", "generation", "version", "from", "to", "rows", "by", "why"),
            (
                (
                    _moment(move.moved_at),
                    move.generation,
                    move.version,
                    move.old or _START,
                    move.new or _START,
                    move.rows,
                    move.moved_by,
                    move.reason,
                )
                for move in moves
            ),
        )


@app.command("set")
def set_(
    name: SyncName,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="A value of the cursor, above the watermark.")
    ],
    reason: Reason,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Move a watermark forward; what lies between is not loaded.

    Example: tidegate watermark set orders 2026-11-01 --reason "loaded by hand"
    """
    opened = open_project(project, profile)
    with translated(f"moving the watermark of {name}"):
        moved = opened.watermark(name).set(value, reason=reason)
    if as_json:
        print_json({"sync": name, **_document(moved)})
    else:
        print_line(f"{name}: watermark set to {moved.value}; rows up to there are not loaded")


@app.command()
def rewind(
    name: SyncName,
    reason: Reason,
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="A value of the cursor, below the watermark."),
    ] = None,
    to_start: Annotated[
        bool, typer.Option("--to-start", help="Go back to the start: everything is loaded again.")
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Move a watermark back; the next run loads what follows again.

    Example: tidegate watermark rewind orders 2026-11-01 --reason "fix tax"
    """
    if value is not None and to_start:
        raise UsageError(f"{value} and --to-start were both given", "give one of them")
    if value is None and not to_start:
        raise UsageError(
            f"how far back should {name} go?", "give a value of its cursor, or --to-start"
        )
    opened = open_project(project, profile)
    with translated(f"moving the watermark of {name}"):
        moved = opened.watermark(name).rewind(value, reason=reason)
    if as_json:
        print_json({"sync": name, **_document(moved)})
        return
    what = f"to {moved.value}; what follows it" if moved.value else "to the start; everything"
    print_line(f"{name}: watermark back {what} is loaded again by: tidegate run {name}")


def _document(watermark: Watermark) -> dict[str, Any]:
    return {
        "watermark": watermark.value,
        "cursor_type": watermark.cursor_type,
        "generation": watermark.generation,
        "version": watermark.version,
        "rows": watermark.rows_synced,
        "position": watermark.position,
        "update_id": watermark.update_id,
        "moved_at": watermark.updated_at,
    }


def _value(watermark: Watermark) -> str:
    # Without a cursor a load takes the whole table.
    whole = watermark.cursor_type is None and watermark.version > 0
    return watermark.value or ("all of it" if whole else _START)


def _moment(moment: Any) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
