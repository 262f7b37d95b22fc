"""`tidegate token`: who may use the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import moment, print_json, print_line, print_table, translated
from tidegate.core.errors import UsageError
from tidegate.core.identity import Scope

if TYPE_CHECKING:
    from tidegate.admin.tokens import ApiToken

app = typer.Typer(
    no_args_is_help=True,
    help="Say who may use the service.\n\nExample: tidegate token create nightly --scope submit",
)
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]


@app.command()
def create(
    name: TokenName,
    scope: Annotated[
        Scope,
        typer.Option(
            "--scope",
            help="What it allows: only to send events; to read; both and to queue; everything.",
        ),
    ] = Scope.READ,
    expires: Annotated[
        str, typer.Option("--expires", help='After which time it ends, such as "1 day", or never.')
    ] = "90 days",
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it once; only its hash is kept.

    Example: tidegate token create nightly --scope submit --expires "30 days"
    """
    from tidegate.admin.tokens import ApiTokens
    from tidegate.jobs.access_audit import AccessAudit
    from tidegate.jobs.worker_records import user_name

    seconds = None if expires == "never" else _seconds(expires)
    opened = open_project(project, profile)
    context, actor = opened.context, f"{user_name()} (tidegate token create)"
    with translated("making a token"):
        context.control_id()
        with context.plane.connect() as control, control.transaction():
            token, text = ApiTokens(context.plane).create(
                control, opened.name, name, scope, actor=actor, expires_seconds=seconds
            )
            AccessAudit(context.plane, opened.name).record(
                control, actor=actor, action="token create", object=name, outcome=scope.value
            )
    if as_json:
        print_json({**_document(token), "token": text})
        return
    until = f" until {moment(token.expires_at)}" if token.expires_at else ""
    print_line(text)
    typer.echo(
        f"token {name} allows {scope.value}{until}; it is not shown again. Send it as: "
        "Authorization: Bearer TOKEN",
        err=True,
    )


@app.command("list")
def list_(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """List the tokens of the project, revoked ones last.

    Example: tidegate token list
    """
    from tidegate.admin.tokens import ApiTokens
    from tidegate.jobs.context import control_session

    opened = open_project(project, profile)
    with translated("listing tokens"), control_session(opened.context) as control:
        found = (
            [] if control is None else ApiTokens(opened.context.plane).list(control, opened.name)
        )
    if as_json:
        print_json([_document(one) for one in found])
    elif not found:
        print_line("no tokens: the service answers this machine only")
    else:
        print_table(
            ("name", "scope", "state", "expires", "used", "created", "by"),
            (
                (
                    one.name,
                    one.scope.value,
                    _state(one),
                    moment(one.expires_at) if one.expires_at else "never",
                    moment(one.used_at) if one.used_at else "never",
                    moment(one.created_at),
                    one.created_by,
                )
                for one in found
            ),
        )


@app.command()
def revoke(
    name: TokenName,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """End a token; nothing is changed with it any more, and a second later nothing read either.

    Example: tidegate token revoke nightly
    """
    from tidegate.admin.tokens import ApiTokens
    from tidegate.jobs.access_audit import AccessAudit
    from tidegate.jobs.worker_records import user_name

    opened = open_project(project, profile)
    context, actor = opened.context, f"{user_name()} (tidegate token revoke)"
    with translated(f"revoking {name}"):
        context.control_id()
        with context.plane.connect() as control, control.transaction():
            tokens = ApiTokens(context.plane)
            token = tokens.revoke(control, opened.name, name, actor=actor)
            left = tokens.any_good(control, opened.name)
            AccessAudit(context.plane, opened.name).record(
                control, actor=actor, action="token revoke", object=name, outcome="revoked"
            )
    if as_json:
        print_json({**_document(token), "tokens_left": left})
        return
    print_line(f"token {name} is revoked")
    if not left:
        print_line(
            "it was the last good one: the service answers nobody now; make another, or let this "
            "machine in without any: tidegate token open --yes"
        )


@app.command("open")
def open_(
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    project: ProjectFolder = HERE,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Let this machine in without a token again: forget those that are revoked or expired.

    Whoever reaches the service from this machine may do everything then, also through a proxy that
    does not say that it is one.

    Example: tidegate token open --yes
    """
    from tidegate.admin.tokens import ApiTokens
    from tidegate.jobs.access_audit import AccessAudit
    from tidegate.jobs.worker_records import user_name

    if not yes:
        raise UsageError(
            "without tokens everybody on this machine may do everything through the service",
            "if that is what you want: tidegate token open --yes",
        )
    opened = open_project(project, profile)
    context, actor = opened.context, f"{user_name()} (tidegate token open)"
    with translated("opening the service"):
        context.control_id()
        with context.plane.connect() as control, control.transaction():
            forgotten = ApiTokens(context.plane).forget_all(control, opened.name)
            AccessAudit(context.plane, opened.name).record(
                control, actor=actor, action="token open", object=None, outcome="open"
            )
    if as_json:
        print_json({"project": opened.name, "forgotten": forgotten})
        return
    print_line("the service answers this machine without a token, and no other")


def _seconds(text: str) -> float:
    from tidegate.core.units import parse_duration

    try:
        found = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--expires {text!r}", f"expected {error}") from None
    if not 0 < found <= 100 * 365 * 86_400:
        raise UsageError(
            f"--expires {text!r}", "expected a time from now, 100 years at most, or never"
        )
    return found


def _state(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.is_expired else "good"


def _document(token: ApiToken) -> dict[str, Any]:
    return {
        "name": token.name,
        "scope": token.scope.value,
        "state": _state(token),
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "revoked_by": token.revoked_by,
        "used_at": token.used_at,
    }
