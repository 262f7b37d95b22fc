"""Texts from outside that Postgres can take."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import AfterValidator

PLAIN: dict[str, Any] = {"pattern": "^[^\\u0000]*$"}
"""how a schema says it"""


def no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL characters")
    return text


Text = Annotated[
    str, AfterValidator(no_nul), Query(min_length=1, max_length=300, json_schema_extra=PLAIN)
]
"""what a list is filtered by"""
