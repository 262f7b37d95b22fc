"""Where a HiveServer2 is, and how it is spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tidegate.errors import SettingsError

NONE, NOSASL, LDAP = "NONE", "NOSASL", "LDAP"
_AUTH = (NONE, NOSASL, LDAP)
_CATALOGS = ("session", "server")
_EXPECTED = (
    "write thrift://user@host:10009/default; ?auth= is NONE, NOSASL or LDAP (with a password), "
    "?catalog= is session or server"
)


@dataclass(frozen=True, slots=True)
class ThriftAddress:
    """A server, who we are there, and which of the two knows the catalog."""

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str = "default"
    auth: str = NONE
    catalog_on_server: bool = False
    """whether the server has the catalog's address and password, so that none is sent"""

    def __str__(self) -> str:
        return f"thrift://{self.host}:{self.port}"


def parse_thrift_address(text: str) -> ThriftAddress:
    """Read `thrift://[user[:password]@]host:port[/database][?auth=…&catalog=…]`.

    >>> parse_thrift_address("thrift://etl@gateway:10009").port
    10009
    """
    try:
        parts = urlsplit(text)
        port = parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        raise _refused("it cannot be read") from None
    if parts.scheme != "thrift" or not parts.hostname or not port:
        raise _refused("it lacks a host or a port")
    auth = options.pop("auth", LDAP if parts.password else NONE).upper()
    if auth not in _AUTH:
        raise _refused(f"auth is one of {', '.join(_AUTH)}")
    catalog = options.pop("catalog", _CATALOGS[0])
    if catalog not in _CATALOGS:
        raise _refused(f"catalog is one of {', '.join(_CATALOGS)}")
    if options:
        raise _refused(f"{sorted(options)[0]} is no option of it")
    if bool(parts.password) != (auth == LDAP):
        raise _refused(f"a password goes with auth={LDAP}, and with that alone")
    return ThriftAddress(
        host=parts.hostname,
        port=port,
        user=_decoded(parts.username),
        password=_decoded(parts.password),
        database=_database(parts),
        auth=auth,
        catalog_on_server=catalog == "server",
    )


def _database(parts: SplitResult) -> str:
    return unquote(parts.path.removeprefix("/")) or "default"


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None


def _refused(why: str) -> SettingsError:
    # The address may hold a password, so that it is not repeated.
    return SettingsError(f"maintenance.engine is not a Thrift address: {why}", _EXPECTED)
