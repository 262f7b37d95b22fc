"""Who may do what through the service."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a token allows."""

    EVENTS = "events"
    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def allows(self, wanted: Scope) -> bool:
        """Whether this is enough for that; who only sends events sees nothing.

        >>> Scope.SUBMIT.allows(Scope.READ), Scope.EVENTS.allows(Scope.READ)
        (True, False)
        """
        return wanted is self or wanted in _INCLUDED.get(self, ())


_INCLUDED = {
    Scope.SUBMIT: frozenset({Scope.EVENTS, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
}
