"""The seeds of random tests. TIDEGATE_SEED=17, or `make chaos SEED=17`, runs that one alone."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tried import count

# Tidegate itself takes every TIDEGATE_* for a setting, but for TIDEGATE_TEST_*.
if "TIDEGATE_SEED" in os.environ:
    os.environ["TIDEGATE_TEST_SEED"] = os.environ.pop("TIDEGATE_SEED")


def seeds(default: Iterable[int]) -> list[int]:
    """The seed that was asked for, or else these."""
    asked = os.environ.get("TIDEGATE_TEST_SEED")
    return list(default) if asked is None else [int(asked)]


def chosen(default: int) -> int:
    """The seed of the test that runs now; says how to run it again."""
    (seed,) = seeds([default])
    print(f"again with: TIDEGATE_SEED={seed}")
    count(seeds=1)
    return seed
