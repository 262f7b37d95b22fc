"""Who asks: by their token, or from this very machine where there never was one."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tidegate.api import problem_kinds as kinds
from tidegate.api.problems import Problem
from tidegate.api.service import Caller, Service
from tidegate.control.api_tokens import ApiTokens, FoundToken, digest
from tidegate.model.access import Scope

OPEN = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""what everybody may ask"""
FRESH_SECONDS = 1.0
_MOST = 1_000
_CREATE = "tidegate token create NAME --scope submit"
# What proxies add, each in its own way. One that adds nothing still speaks HTTP/1.0, as nginx does
# where nothing else is said.
_FORWARDED = frozenset(
    {
        b"via",
        b"forwarded",
        b"cdn-loop",
        b"client-ip",
        b"proxy-connection",
        b"true-client-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-host",
        b"x-proxyuser-ip",
        b"x-real-ip",
    }
)
_FORWARDED_PREFIXES = (
    b"cf-",
    b"fastly-",
    b"fly-",
    b"x-amz-cf-",
    b"x-amzn-",
    b"x-appengine-",
    b"x-arr-",
    b"x-azure-",
    b"x-envoy-",
    b"x-forwarded",
    b"x-original-",
)

Headers = dict[bytes, bytes]


@dataclass(slots=True)
class Access:
    """Decides who a request comes from.

    What only reads may rely on what was found a second ago; what changes something asks again.
    """

    service: Service
    _found: dict[bytes, tuple[float, FoundToken]] = field(default_factory=dict)

    def remembered(self, headers: Headers, client: str | None, *, reads: bool) -> Caller | None:
        """Who it is, if that was found out a moment ago; to refuse it that is always enough."""
        text = token_of(headers)
        known = self._found.get(digest(text or ""))
        if known is None or time.monotonic() - known[0] > FRESH_SECONDS:
            return None
        if reads or (text is None and known[1].any_exists):
            return self._judge(known[1], text, headers, client)
        return None

    def find(self, headers: Headers, client: str | None) -> Caller:
        """Who it is, from the database; Problem when nobody that may ask."""
        text = token_of(headers)
        asked_at = time.monotonic()
        with self.service.control() as connection:
            found = ApiTokens(self.service.context.plane).find(
                connection, self.service.project.name, text or ""
            )
        key = digest(text or "")
        if text is None or found.token is not None:
            if len(self._found) >= _MOST:
                self._found.clear()
            self._found[key] = (asked_at, found)
        else:
            # What is guessed must not fill the memory.
            self._found.pop(key, None)
        return self._judge(found, text, headers, client)

    def is_guess(self, headers: Headers) -> bool:
        """Whether a token is shown that was never found good here."""
        text = token_of(headers)
        return text is not None and digest(text) not in self._found

    def _judge(
        self, found: FoundToken, text: str | None, headers: Headers, client: str | None
    ) -> Caller:
        if found.token is not None:
            return Caller(found.token.name, found.token.scope, by_token=True)
        if found.any_exists or text is not None:
            said = "no token was given" if text is None else "this token opens nothing (any more)"
            raise Problem(
                kinds.UNAUTHORIZED,
                said,
                hint=f"Authorization: Bearer …, from {_CREATE}",
                headers={"Connection": "close"},
            )
        refuse_strangers(headers, client)
        return Caller("loopback", Scope.ADMIN, by_token=False)


def token_of(headers: Headers) -> str | None:
    """What stands in Authorization; None without one."""
    given = headers.get(b"authorization")
    if given is None:
        return None
    kind, _, text = given.decode("latin-1").partition(" ")
    return text.strip() if kind.lower() == "bearer" else given.decode("latin-1")


def refuse_strangers(headers: Headers, client: str | None) -> None:
    """Without tokens: only this machine itself, under a name that no other site can take."""
    if client is None or not is_loopback(client):
        _refuse("this request comes from another machine")
    if any(one in _FORWARDED or one.startswith(_FORWARDED_PREFIXES) for one in headers):
        _refuse("this request comes through a proxy")
    if not is_loopback(_host(headers)):
        _refuse("this request names another host")
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").partition("://")[2] != headers.get(
        b"host", b""
    ).decode("latin-1"):
        _refuse("this request comes from a page of another site")
    if headers.get(b"sec-fetch-site") == b"cross-site":
        _refuse("this request comes from a page of another site")


def _host(headers: Headers) -> str:
    """The name under which we were asked, without its port."""
    try:
        return urlsplit("//" + headers.get(b"host", b"").decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address is that of the machine itself; of names only localhost is.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _refuse(said: str) -> None:
    raise Problem(kinds.LOOPBACK_ONLY, f"{said}, and the project has no token", hint=_CREATE)
