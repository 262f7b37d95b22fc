"""Texts from outside that Postgres can take."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {"pattern": "^[^\\u0000]*$"}
"""how a schema says it"""


def no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL characters")
    return text
