"""How it is told that somebody else has committed first."""

from __future__ import annotations

# Iceberg's words, and those of our trigger in its catalog.
_CONFLICTS = (
    "CommitFailedException",
    "ValidationException",
    "another commit came first",
    "Found conflicting",
)


def is_conflict(error: BaseException) -> bool:
    """Whether doing it again, upon what the table is by now, can help."""
    return any(text in str(error) for text in _CONFLICTS)
