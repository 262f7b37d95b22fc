"""Tidegate db."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, DryRun, Profile, ProjectFolder, Yes, open_project
from tidegate.cli.output import print_json, print_line, print_table, translated
from tidegate.core.errors import SettingsError, TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.admin.inventory import InstalledSchema
    from tidegate.admin.uninstall import Installation
    from tidegate.config import Settings
    from tidegate.postgres.databases import Databases


def uninstall(
    connections: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONNECTION…", help="Connections, or control; by default all."),
    ] = None,
    yes: Yes = False,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Remove also what other projects or control planes use."),
    ] = False,
    dry_run: DryRun = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """List what Tidegate made in the project's databases, and remove it; never a target table.

    Example: tidegate db uninstall warehouse
    """
    from tidegate.admin import uninstall as work

    with open_project(project, profile) as opened:
        context = opened.context
        with translated("looking for what Tidegate made"):
            found = work.find_installation(context, connections or (), shared=shared)
        server = context.databases.embedded
        folder = str(server.directory) if server.directory.exists() else None
        removing = bool(found.premises) and not dry_run
        if not as_json:
            _print(found)
        if removing:
            if not yes:
                _ask()
            work.uninstall(context, found, shared=shared)
    if as_json:
        print_json({"removed": removing, **_document(found, folder)})
        return
    if found.premises:
        print_line(
            "removed; the target tables are as they were" if removing else "nothing was removed"
        )
    _print_notes(found, connections or [], folder)


def _print(found: Installation) -> None:
    if not found.premises:
        print_line("Tidegate has nothing in these databases")
    for one in found.premises:
        scope = "" if one.whole else f", only what is of project {found.owner.project}"
        print_line(f"{one.connection}, schema {one.schema} ({one.role}{scope}):")
        if not one.parts:
            print_line("  nothing")
        for part in one.parts:
            if part.kind == "rows":
                print_line(f"  {part.rows:,} rows of {part.name}, which stays")
            else:
                rows = "" if part.rows is None else f", {part.rows:,} rows"
                print_line(f"  {part.kind} {part.name}{rows}")
        if one.kept:
            print_line(f"  stays, and the schema with it: {', '.join(one.kept)}")
        if any("(the lake's catalog)" in text for text in one.kept):
            print_line("  the catalog is the only way to the lake's tables, so it is never removed")
        if one.shared_with:
            what = "is used as well by" if not one.whole else "WILL BE GONE ALSO FOR"
            print_line(f"  {what} {', '.join(one.shared_with)}")
        if not one.whole:
            print_line("  --shared removes all of it")


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UsageError("removing this needs a yes", "see what --dry-run lists, then add --yes")
    if not typer.confirm("remove this?", err=True):
        print_line("nothing was removed")
        raise typer.Exit(1)


def _print_notes(found: Installation, connections: list[str], folder: str | None) -> None:
    for name, problem in found.unreachable.items():
        sys.stderr.write(f"note: {name} could not be searched: {problem}\n")
    if connections == ["control"] and found.premises and found.premises[0].whole:
        sys.stderr.write(
            "note: the ledgers stay; under a new control plane each table needs: tidegate run NAME "
            "--take-over\n"
        )
    if folder is not None:
        print_line(
            f"the project's own PostgreSQL stays, in {folder}; to have it gone: tidegate db stop, "
            "then delete that folder"
        )


def _document(found: Installation, folder: str | None) -> dict[str, Any]:
    return {
        "found": [_premises(one) for one in found.premises],
        "not_searched": found.unreachable,
        "embedded": folder,
    }


def _premises(one: InstalledSchema) -> dict[str, Any]:
    return {
        "connection": one.connection,
        "role": one.role.value,
        "schema": one.schema,
        "whole": one.whole,
        "parts": [{"kind": part.kind, "name": part.name, "rows": part.rows} for part in one.parts],
        "kept": list(one.kept),
        "shared_with": list(one.shared_with),
    }


app = typer.Typer(
    no_args_is_help=True,
    help="Start, stop and reach the project's databases.\n\nExample: tidegate db psql warehouse",
)

_CONNECTION = "A connection of the project, or control; by default the first embedded one."
_SECRET = re.compile(r"pass(word|wd)$|secret|token|scram_\w+_key")


@app.command()
def start(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Start the project's own PostgreSQL; it stays until `tidegate db stop`.

    Example: tidegate db start
    """
    databases = _open(project, profile)
    if not _embedded_names(databases.settings):
        raise UsageError(
            "this project uses no embedded database: all of its connections are URLs",
            'to have one, write "embedded" for project.control or a connection in tidegate.toml',
        )
    running = databases.embedded.is_running()
    databases.embedded.start()
    port = databases.embedded.port
    if as_json:
        print_json({"running": True, "started": not running, "port": port})
    else:
        state = "was already running" if running else "started"
        print_line(f"the project's PostgreSQL {state}, on 127.0.0.1 port {port}")


@app.command()
def stop(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Stop the project's own PostgreSQL; what it holds stays, and any command starts it again.

    Example: tidegate db stop
    """
    stopped = _open(project, profile).embedded.stop()
    if as_json:
        print_json({"running": False, "stopped": stopped})
    else:
        print_line(f"the project's PostgreSQL {'has stopped' if stopped else 'was not running'}")


@app.command()
def url(
    connection: Annotated[str | None, typer.Argument(help=_CONNECTION)] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Print the address of a database, without its password.

    Example: psql "$(tidegate db url warehouse)"
    """
    databases = _open(project, profile)
    name = connection or _default_connection(databases.settings)
    _refuse_lake(databases.settings, name, "url")
    embedded = databases.settings.connection(name).embedded_database
    conninfo = databases.conninfo(name)
    text, withheld = _without_secrets(conninfo)
    if embedded is not None:
        text, withheld = databases.embedded.url(embedded), []
    if as_json:
        print_json({"connection": name, "url": text, "left_out": withheld})
        return
    print_line(text)
    if withheld:
        sys.stderr.write(
            f"note: left out: {', '.join(withheld)}; psql will ask, or use: "
            f"tidegate db psql {name}\n"
        )


@app.command()
def psql(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONNECTION -- ARGS", help=_CONNECTION + " ARGS go to psql."),
    ] = None,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    _json: Annotated[
        bool, typer.Option("--json", help="Print errors as JSON; psql has formats such as --csv.")
    ] = False,
) -> None:
    """Open psql on a database; the password is on no command line.

    Example: tidegate db psql warehouse -- -c "SELECT count(*) FROM raw.orders"
    """
    databases = _open(project, profile)
    arguments = list(words or [])
    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments.pop(0) if named else _default_connection(databases.settings)
    _refuse_lake(databases.settings, name, "psql")
    conninfo, environment = _for_child(databases.conninfo(name), name)
    program = _psql(databases.embedded.bin_directory)
    sys.stdout.flush()
    try:
        os.execve(program, ["psql", conninfo, *arguments], {**os.environ, **environment})
    except OSError as error:
        raise TidegateError(f"{program} cannot be run: {error.strerror}") from None


@app.command()
def migrate(
    project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False
) -> None:
    """Bring the control schema up to date; every run does so as well.

    Example: tidegate db migrate
    """
    from tidegate.admin.schemas import migrate_control

    with translated("migrating the control schema"):
        done = migrate_control(open_project(project, profile).context)
    if as_json:
        print_json(done)
    elif done.before == done.after:
        print_line(f"schema {done.schema} is up to date, at version {done.after}")
    else:
        print_line(f"schema {done.schema} migrated from version {done.before} to {done.after}")


@app.command()
def check(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Print the versions of Tidegate's schemas; exit 1 when one is not as it should be.

    Example: tidegate db check
    """
    from tidegate.admin.schemas import check_schemas

    opened = open_project(project, profile)
    found = check_schemas(opened.context, opened.destinations)
    if as_json:
        print_json(found)
    else:
        print_table(
            ("connection", "schema", "server", "state", "to do"),
            ((one.connection, one.schema, one.server, one.state, one.fix) for one in found),
        )
    if any(one.fix for one in found):
        raise typer.Exit(1)


app.command("uninstall")(uninstall)


def _open(folder: Path, profile: str | None) -> Databases:
    """The databases alone: a broken pipelines file must not keep anybody from stopping them."""
    from tidegate.config import find_project, load_settings
    from tidegate.postgres.databases import Databases

    return Databases(load_settings(find_project(folder), profile=profile))


def _refuse_lake(settings: Settings, name: str, command: str) -> None:
    """A lake is no database, though what is recorded of it lies in one."""
    if settings.connection(name).type == "iceberg":
        raise UsageError(
            f'connection "{name}" is a lake, which is no database and has no address of its own',
            f"what is recorded of it lies in the control database: tidegate db {command} control",
        )


def _embedded_names(settings: Settings) -> list[str]:
    names: list[str] = []
    for name in (*settings.connections, "control"):
        try:
            if settings.connection(name).embedded_database is not None:
                names.append(name)
        except SettingsError:
            continue  # it needs a variable that is not set, so it is no embedded one
    return names


def _default_connection(settings: Settings) -> str:
    return (*_embedded_names(settings), "control")[0]


def _without_secrets(conninfo: str) -> tuple[str, list[str]]:
    """A connection string that still works, and the names of what was taken out of it."""
    from psycopg.conninfo import make_conninfo

    from tidegate.postgres.connection import check as parse
    from tidegate.postgres.connection import mask

    params = parse(conninfo)
    secrets = [name for name in params if _SECRET.search(name)]
    text = mask(conninfo)
    if text.startswith(("postgresql://", "postgres://")):
        text = text.replace(":***@", "@", 1) if "password" in secrets else text
        for name in secrets:
            text = re.sub(rf"([?&]){name}=\*\*\*(&|$)", r"\1", text)
        return text.rstrip("?&"), secrets
    rest = {name: value for name, value in params.items() if name not in secrets}
    return mask(make_conninfo("", **rest)), secrets


def _for_child(conninfo: str, name: str) -> tuple[str, dict[str, str]]:
    """What may stand on psql's command line, and what must go through its environment."""
    from psycopg.conninfo import make_conninfo

    from tidegate.postgres.connection import check as parse

    params = parse(conninfo)
    password = params.get("password")
    if password:
        del params["password"]
    others = [key for key in params if key != "password" and _SECRET.search(key)]
    if others:
        raise UsageError(
            f'connection "{name}" has {", ".join(others)}, which psql takes on its command line '
            "only, for all to see",
            "put it into a service file (pg_service.conf) and write service=… in the connection",
        )
    return make_conninfo("", **params), {"PGPASSWORD": password} if password else {}


def _psql(bundled: Path) -> str:
    """The psql of the wheel, or on a terminal the one on PATH, which can edit lines."""
    on_path = shutil.which("psql")
    program = bundled / "psql"
    if on_path and (sys.stdin.isatty() or not program.exists()):
        return on_path
    if not program.exists():
        raise TidegateError("there is no psql", "install the PostgreSQL client")
    return str(program)
