"""What goes out: JSON documents, written the same way everywhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import Request, Response

JSON = "application/json"


def render(value: Any) -> bytes:
    """A JSON document; half of a surrogate pair, which a request may hold, is written as such."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(render(value), status, dict(headers or {}), JSON)


def tagged_answer(request: Request, value: Any) -> Response:
    """A document with a strong ETag, or 304 for whoever has it already."""
    body = render(value)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    held = request.headers.get("if-none-match", "")
    if held.strip() == "*" or tag in {one.strip().removeprefix("W/") for one in held.split(",")}:
        return Response(None, 304, headers)
    return Response(body, 200, headers, JSON)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)
