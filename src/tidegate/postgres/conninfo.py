"""Connection strings, URL or keyword form: checked, merged, and shown without their secrets."""

from __future__ import annotations

import re
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidegate.errors import SettingsError

HIDDEN = "***"
MALFORMED = "(malformed connection string)"
EXAMPLE = (
    'write "postgresql://user:password@host:5432/dbname" or "host=... dbname=... user=...", and '
    "in a URL write special characters as %XX (@ is %40, : is %3A, / is %2F, % is %25)"
)

_SECRET = re.compile(r"pass(word|wd)|secret|token|scram_\w+_key")
_PORTS = re.compile(r"[0-9,]*")
# libpq's messages repeat parts of the string, so only their beginnings are looked at.
_REASONS = {
    "invalid percent-encoded token": "it has a % that is not followed by two hex digits",
    "forbidden value %00": "it has a %00",
    "unexpected spaces found": "it has a space; write %20",
    "end of string reached when looking for matching": "a [ has no closing ]",
    "unterminated quoted string": "a quote is not closed",
    'missing "="': 'a keyword has no "="; quote values that hold spaces',
    "invalid connection option": "it has a keyword that Postgres does not know",
    "invalid URI query parameter": "it has a query parameter that Postgres does not know",
    'missing key/value separator "="': 'a query parameter has no "="',
    'extra key/value separator "="': "a query parameter has more than one =; write %3D",
}


def check(conninfo: str, key: str = "the connection") -> dict[str, str]:
    """Return the parameters in `conninfo`; SettingsError names `key` and repeats no secret.

    >>> check("postgresql://ana@db/shop")["host"]
    'db'
    """
    try:
        params = _parse(conninfo)
    except psycopg.Error as error:
        message = str(error)
        reason = next((text for start, text in _REASONS.items() if message.startswith(start)), None)
        raise SettingsError(
            f"{key} is not a connection string that Postgres understands"
            + (f": {reason}" if reason else ""),
            hint=EXAMPLE,
        ) from None
    if _is_url(conninfo) and _misread(conninfo.strip(), params, whole=False):
        raise SettingsError(
            f"{key} has an @, : or / in its user, password or port that must be written as %XX",
            hint=EXAMPLE,
        )
    return params


def merge(conninfo: str, **params: str | int | None) -> str:
    """Return `conninfo` in keyword form with `params` on top; None leaves one as it is.

    >>> merge("postgresql://ana@db/shop", application_name="tidegate")
    'user=ana dbname=shop host=db application_name=tidegate'
    """
    known = check(conninfo)
    given = {name: str(value) for name, value in params.items() if value is not None}
    try:
        return make_conninfo("", **{**known, **given})
    except psycopg.Error:
        names = ", ".join(sorted(given))
        raise SettingsError(f"Postgres does not take these connection options: {names}") from None


def mask(conninfo: str) -> str:
    """Return `conninfo` with every secret replaced by ***; what cannot be read is not shown.

    >>> mask("postgresql://ana:hunter2@db/shop")
    'postgresql://ana:***@db/shop'
    """
    params = _readable(conninfo)
    if params is None:
        return MALFORMED
    hidden = {name: _shown(name, value) for name, value in params.items()}
    return _url(hidden) if _is_url(conninfo) else _keywords(hidden)


def describe(conninfo: str) -> str:
    """Return "user@host:port/dbname", as much of it as `conninfo` says.

    >>> describe("host=db port=5433 user=ana password=hunter2 dbname=shop")
    'ana@db:5433/shop'
    """
    params = _readable(conninfo)
    if params is None:
        return MALFORMED
    user, dbname = params.get("user"), params.get("dbname")
    host = params.get("host") or params.get("hostaddr")
    text = (f"{user}@" if user else "") + _authority(host or "", params.get("port"))
    text += f"/{_shown('dbname', dbname)}" if dbname else ""
    if service := params.get("service"):
        return f"service={service}" + (f" ({text})" if text else "")
    return text or "(the server that libpq finds by default)"


def _parse(conninfo: str) -> dict[str, str]:
    if "\0" in conninfo:  # libpq would stop reading there
        raise psycopg.ProgrammingError("forbidden value %00")
    try:
        params = conninfo_to_dict(conninfo.strip() if _is_url(conninfo) else conninfo)
    except UnicodeError:
        raise psycopg.ProgrammingError("not text") from None
    return {name: str(value) for name, value in params.items() if value is not None}


def _readable(conninfo: str) -> dict[str, str] | None:
    try:
        params = _parse(conninfo)
    except psycopg.Error:
        return None
    if _is_url(conninfo) and _misread(conninfo.strip(), params, whole=True):
        return None
    return params


def _is_url(conninfo: str) -> bool:
    return conninfo.strip().startswith(("postgresql://", "postgres://"))


def _misread(url: str, params: dict[str, str], *, whole: bool) -> bool:
    """Say whether part of an unescaped password may have ended up as host, port or dbname."""
    rest = url.split("://", 1)[1]
    if not whole:
        rest = rest.split("?", 1)[0]
    before, _, after = rest.partition("@")
    return (
        "@" in after
        or (bool(after) and "/" in before)
        or not _PORTS.fullmatch(params.get("port", ""))
    )


def _shown(name: str, value: str) -> str:
    if _SECRET.search(name):
        return HIDDEN
    if name == "dbname" and ("=" in value or "://" in value):
        return mask(value)  # libpq takes such a dbname for a connection string of its own
    return value


def _keywords(params: dict[str, str]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in params.items())


def _quoted(value: str) -> str:
    if value and not re.search(r"[\s'\\]", value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _url(params: dict[str, str]) -> str:
    params = dict(params)
    user, password = params.pop("user", None), params.pop("password", None)
    host, port, dbname = (params.pop(name, None) for name in ("host", "port", "dbname"))
    if host and host.startswith("/"):
        params["host"], host = host, None
    login = quote(user or "", safe="") + (f":{HIDDEN}" if password is not None else "")
    text = "postgresql://" + (f"{login}@" if login else "") + _authority(host or "", port)
    text += f"/{quote(dbname, safe='*()')}" if dbname else ""
    query = "&".join(f"{name}={quote(value, safe='/*')}" for name, value in params.items())
    return f"{text}?{query}" if query else text


def _authority(host: str, port: str | None) -> str:
    hosts, ports = host.split(","), (port or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        return host
    return ",".join(
        (f"[{one}]" if ":" in one else one) + (f":{its}" if its else "")
        for one, its in zip(hosts, ports, strict=True)
    )
