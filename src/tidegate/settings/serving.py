"""`[serve]`: where the service listens, and how much it takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from tidegate.settings import checks as values
from tidegate.settings.section import Section
from tidegate.settings.sizes import parse_size


def _size(value: object) -> int:
    found = parse_size(value)
    if found < 1024:
        raise ValueError('a size of 1KB at least, such as "1MB"')
    return found


class ServeSettings(Section):
    """`[serve]`: the HTTP service."""

    host: values.Text = "127.0.0.1"
    port: Annotated[int, BeforeValidator(values.whole(0, 65_535))] = 8787
    max_request: Annotated[int, BeforeValidator(_size)] = 1024 * 1024
    """the largest body that is read"""
