"""For tests of your own pipelines: a pytest plugin, two assertions, and `tidegate prove`.

>>> from tidegate.testing import assert_crash_safe, assert_idempotent
"""

from __future__ import annotations

from typing import Any

__all__ = ["assert_crash_safe", "assert_idempotent"]


def __getattr__(name: str) -> Any:
    # pytest loads the plugin in every project that has Tidegate installed; it must cost nothing.
    if name in __all__:
        from tidegate.testing import assertions

        return getattr(assertions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
