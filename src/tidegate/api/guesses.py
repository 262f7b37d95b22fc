"""Wrong tokens: some are free, then one a second from an address; and a few lines of audit."""

from __future__ import annotations

import ipaddress
import math
import time
from dataclasses import dataclass, field

from tidegate.api import problem_kinds as kinds
from tidegate.api.problems import Problem

FREE = 10
SECONDS_EACH = 1.0
NOTED_SECONDS = 600.0
"""so often is an address in the audit at most"""
MOST_NOTED = 50
"""so many addresses within that time"""
_MOST = 10_000


@dataclass(slots=True)
class _Noted:
    due_at: float = 0.0
    attempts: int = 0


@dataclass(slots=True)
class Guesses:
    """The failed attempts of each address, as far as they matter still."""

    _paid_until: dict[str, float] = field(default_factory=dict)
    _noted: dict[str, _Noted] = field(default_factory=dict)
    _noted_since: float = 0.0
    _noted_count: int = 0

    def check(self, client: str | None) -> None:
        """Problem when there were too many of late."""
        paid = self._paid_until.get(_address(client), 0.0)
        wait = paid - time.monotonic() - FREE * SECONDS_EACH
        if wait > 0:
            raise Problem(
                kinds.TOO_MANY_GUESSES,
                "too many requests with a wrong token came from this address",
                headers={"Retry-After": str(math.ceil(wait)), "Connection": "close"},
            )

    def charge(self, client: str | None) -> None:
        """One more."""
        now, address = time.monotonic(), _address(client)
        paid = max(self._paid_until.get(address, 0.0), now)
        if len(self._paid_until) >= _MOST:
            kept = {one: until for one, until in self._paid_until.items() if until > now}
            self._paid_until = kept if len(kept) < _MOST else {}
        self._paid_until[address] = paid + SECONDS_EACH

    def count(self, client: str | None) -> int:
        """How many failed attempts are to be written into the audit now; 0 when none is."""
        now, address = time.monotonic(), _address(client)
        if now - self._noted_since > NOTED_SECONDS:
            self._noted_since, self._noted_count = now, 0
        if len(self._noted) >= _MOST:
            self._noted.clear()
        noted = self._noted.setdefault(address, _Noted())
        noted.attempts += 1
        if now < noted.due_at or self._noted_count >= MOST_NOTED:
            return 0
        self._noted_count += 1
        attempts, noted.attempts, noted.due_at = noted.attempts, 0, now + NOTED_SECONDS
        return attempts


def _address(client: str | None) -> str:
    """Whom to count: whoever has one address of IPv6 has 2 ** 64 of them."""
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
