"""Long lists in pages: an opaque cursor says where the next one begins."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request

from tidegate.api.problems import invalid

Limit = Annotated[int, Query(ge=1, le=1_000, description="How many at most.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=300,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Where to go on: what `next_cursor` of the page before says.",
    ),
]


def encode(values: Sequence[Any]) -> str:
    """Where a page ended, for the next request."""
    text = json.dumps([str(one) for one in values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, count: int) -> list[str]:
    """What `encode` was given; Problem for anything else."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(base64.urlsafe_b64decode(padded))
        if isinstance(found, list) and len(found) == count:
            values = [str(one) for one in found]
            # Half of a surrogate pair is a string to JSON and to nobody else; so is NUL.
            "".join(values).encode()
            if "\0" not in "".join(values):
                return values
    except (ValueError, binascii.Error, RecursionError):
        pass
    raise bad_cursor()


def bad_cursor() -> Exception:
    return invalid(
        [{"field": "cursor", "in": "query", "message": "not what `next_cursor` of a page said"}]
    )


def links(request: Request, cursor: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of the document and headers that lead to the next page."""
    if cursor is None:
        return {"next_cursor": None, "next": None}, {}
    kept = [(key, value) for key, value in request.query_params.multi_items() if key != "cursor"]
    address = f"{request.url.path}?{urlencode([*kept, ('cursor', cursor)])}"
    return {"next_cursor": cursor, "next": address}, {"Link": f'<{address}>; rel="next"'}
