"""`[serve]`: where the service listens, and how much it takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from tidegate.settings import checks as values
from tidegate.settings.section import Section
from tidegate.settings.sizes import size_from


class ServeSettings(Section):
    """`[serve]`: the HTTP service."""

    host: values.Text = "127.0.0.1"
    port: Annotated[int, BeforeValidator(values.whole(0, 65_535))] = 8787
    max_request: Annotated[int, BeforeValidator(size_from("1KB"))] = 1024 * 1024
    """the largest body that is read"""
