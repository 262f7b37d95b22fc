"""`tidegate state`: what is still to be done, in a file and out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import moment, print_json, print_line, translated

app = typer.Typer(
    no_args_is_help=True,
    help="Keep what is still to be done in a file, and load it elsewhere.\n\n"
    "Example: tidegate state dump before-upgrade.json",
)


@app.command()
def dump(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Where to; scheduler.state_path, or state.json in the state folder.",
        ),
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Write unfinished jobs, schedules and the states of tasks into a file, all of one moment.

    Example: tidegate state dump before-upgrade.json
    """
    from tidegate.admin.state import dump_state

    opened = open_project(project, profile)
    with translated("dumping the state"):
        dumped = dump_state(
            opened.context,
            file or opened.settings.state_file or opened.settings.state_directory / "state.json",
        )
    if as_json:
        print_json(
            {
                "file": dumped.path,
                "created_at": dumped.header.created_at,
                "control_id": dumped.header.control_id,
                "bytes": dumped.size_bytes,
                "rows": dumped.rows,
            }
        )
        return
    print_line(f"{dumped.path}: {_told(dumped.rows)}")


@app.command()
def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `state dump` wrote.")],
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Go on as the control database that wrote it, which is gone for good.",
        ),
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Load a file into a control database that knows no job of the project, whole or not at all.

    Example: tidegate state load before-upgrade.json
    """
    from tidegate.admin.state import load_state
    from tidegate.jobs.worker_records import user_name

    opened = open_project(project, profile)
    actor = f"{user_name()} (tidegate state load)"
    with translated("loading the state"):
        loaded = load_state(opened.context, file, actor=actor, take_over=take_over)
        with opened.context.plane.connect() as control:
            same = opened.context.plane.identity(control) == loaded.header.control_id
    if as_json:
        print_json(
            {
                "file": file,
                "created_at": loaded.header.created_at,
                "rows": loaded.rows,
                "same_control_plane": same,
            }
        )
        return
    print_line(f"{_told(loaded.rows)}, as of {moment(loaded.header.created_at)}")
    if not same:
        print_line(
            f"they were those of another control plane ({loaded.header.control_id}); tables that "
            "it has loaded are handed over with: tidegate run NAME --take-over"
        )


def _told(rows: dict[str, int]) -> str:
    jobs = rows.get("jobs", 0)
    words = [f"{jobs} unfinished {'job' if jobs == 1 else 'jobs'}"]
    words += [
        f"{rows[name]} {name.replace('_', ' ')}"
        for name in ("schedules", "task_states", "task_markers")
        if rows.get(name)
    ]
    return ", ".join(words)
