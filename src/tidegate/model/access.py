"""Who may do what through the service."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a token allows; each allows what those before it do."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def allows(self, wanted: Scope) -> bool:
        """Whether this is enough for that.

        >>> Scope.SUBMIT.allows(Scope.READ), Scope.READ.allows(Scope.SUBMIT)
        (True, False)
        """
        order = list(Scope)
        return order.index(self) >= order.index(wanted)
