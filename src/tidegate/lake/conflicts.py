"""What a session of maintenance may meet and get over by doing its work again."""

from __future__ import annotations

# How Iceberg, or our trigger in its catalog, says that somebody else has committed first.
_CONFLICTS = (
    "CommitFailedException",
    "ValidationException",
    "another commit came first",
    "Found conflicting",
)
# Or that it does not know what became of a commit: who does the work again finds out.
_LOST = ("CommitStateUnknownException", "UncheckedSQLException", "I/O error occurred while sending")


def is_passing(error: BaseException) -> bool:
    """Whether doing it again, upon what the table is by now, can help."""
    # An engine's error may be our own words, with all of the engine's behind it.
    said = f"{error}\n{error.__cause__ or ''}"
    return any(text in said for text in (*_CONFLICTS, *_LOST))
