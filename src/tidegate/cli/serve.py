"""`tidegate serve`."""

from __future__ import annotations

from pathlib import Path
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
    tls_cert: Annotated[
        str | None,
        typer.Option("--tls-cert", help="A certificate (PEM): HTTPS; serve.tls_cert by default."),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option("--tls-key", help="Its key, if in another file; serve.tls_key by default."),
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
    from tidegate.service.app import routes

    if openapi:
        print_json(routes().openapi())
        return
    from tidegate.cli.output import configure
    from tidegate.core.log import log
    from tidegate.jobs.worker_records import WorkerIdentity
    from tidegate.service.middleware import is_loopback
    from tidegate.service.server import Server, address, listen, refuse_open_door, tls_context

    with open_project(project, profile) as opened:
        settings = opened.settings.serve
        if settings.log == "json":
            configure(as_json=True)
        # A file that a command names is one from here, a file that the project names is its own.
        if tls_cert is not None:
            tls = tls_context(tls_cert, tls_key, Path.cwd())
        else:
            tls = tls_context(settings.tls_cert, tls_key or settings.tls_key, opened.settings.root)
        chosen = settings.host if host is None else host
        tokens = refuse_open_door(opened, chosen)
        if tls is None and not is_loopback(chosen):
            log.warning("tokens_travel_in_the_open", host=chosen, hint="serve.tls_cert")
        listening = listen(chosen, settings.port if port is None else port)
        where = address(listening, tls=tls is not None)

        loops = opened.loops(
            WorkerIdentity.of_this_process(opened.name, "tidegate serve").worker_id
        )

        def ready() -> None:
            for loop in loops:
                loop.start()
            if as_json:
                print_json({"project": opened.name, "address": where, "tokens_needed": tokens})
                return
            who = "a token is needed" if tokens else "this machine only, no token needed"
            print_line(f"{opened.name} is served at {where} ({who}); see {where}/docs")

        Server(opened, listening, tls).run_here(ready)
        for loop in loops:
            loop.stop()
