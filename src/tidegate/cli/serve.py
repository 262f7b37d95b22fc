"""`tidegate serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line


def serve(
    host: Annotated[
        str | None, typer.Option("--host", help="Where to listen; serve.host by default.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="The port; serve.port by default, 0 for a free one."
        ),
    ] = None,
    openapi: Annotated[
        bool, typer.Option("--openapi", help="Print the OpenAPI document and end.")
    ] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Answer over HTTP: tables, their health, maintenance, jobs.

    Beside that it keeps the table cache up to date, queues what policy recommends, and takes back
    the jobs of dead workers.

    Example: tidegate serve --port 8787
    """
    from tidegate.api.app import routes

    if openapi:
        print_json(routes().openapi())
        return
    from tidegate.api.loops import Loops
    from tidegate.api.server import Server, address, listen, refuse_open_door

    with open_project(project, profile) as opened:
        chosen = opened.settings.serve.host if host is None else host
        tokens = refuse_open_door(opened, chosen)
        listening = listen(chosen, opened.settings.serve.port if port is None else port)
        where = address(listening)

        loops = Loops(opened)

        def ready() -> None:
            loops.start()
            if as_json:
                print_json({"project": opened.name, "address": where, "tokens_needed": tokens})
                return
            who = "a token is needed" if tokens else "this machine only, no token needed"
            print_line(f"{opened.name} is served at {where} ({who}); see {where}/docs")

        Server(opened, listening).run_here(ready)
        loops.stop()
