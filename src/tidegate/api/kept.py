"""Answers that are kept for a moment, as bytes: what is asked most is asked of the cache anyway."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

FRESH_SECONDS = 1.0
_MOST = 2_000


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer and the route that made it."""

    until: float
    route: str
    body: bytes
    headers: list[tuple[bytes, bytes]]


@dataclass(slots=True)
class KeptAnswers:
    """Answers by address; a second old at most, and none after a change made here."""

    _kept: dict[bytes, Kept] = field(default_factory=dict)
    _changes: int = 0

    @property
    def changes(self) -> int:
        """How often all was forgotten; what was read before that is not kept any more."""
        return self._changes

    def get(self, path: bytes, query: bytes) -> Kept | None:
        found = self._kept.get(path + b"?" + query if query else path)
        return None if found is None or found.until < time.monotonic() else found

    def keep(
        self,
        path: bytes,
        query: bytes,
        route: str,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        since: int,
    ) -> None:
        if since != self._changes:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        until = time.monotonic() + FRESH_SECONDS
        self._kept[path + b"?" + query if query else path] = Kept(until, route, body, headers)

    def forget(self) -> None:
        self._changes += 1
        self._kept.clear()
