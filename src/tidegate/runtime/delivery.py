"""What every way to deliver a message has in common: it may not work."""

from __future__ import annotations

from tidegate.errors import TidegateError


class NotDelivered(TidegateError):
    """A message did not arrive, as far as we know; it is tried again."""

    transient = True

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
