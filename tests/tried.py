"""What tests have tried so far in this process; `make chaos` adds it up."""

from __future__ import annotations

import threading
from collections import Counter

KINDS = ("kills", "restarts", "zombies", "seeds", "rows_compared", "differences")

_counted: Counter[str] = Counter()
_adding = threading.Lock()


def count(**numbers: int) -> None:
    """Add to what was tried, by its kind."""
    assert set(numbers) <= set(KINDS), numbers
    with _adding:
        _counted.update(numbers)


def counted() -> Counter[str]:
    """Everything up to now."""
    with _adding:
        return _counted.copy()
