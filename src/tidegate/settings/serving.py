"""`[serve]`: where the service listens, and how much it takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.section import Section
from tidegate.settings.sizes import size_from


class ServeSettings(Section):
    """`[serve]`: the HTTP service."""

    host: values.Text = "127.0.0.1"
    port: Annotated[int, BeforeValidator(values.whole(0, 65_535))] = 8787
    tls_cert: values.Text | None = None
    """a file with the certificate and those that vouch for it; with it HTTPS is spoken"""
    tls_key: values.Text | None = None
    """a file with its key, where that is not in the same one"""
    log: Literal["text", "json"] = "text"
    max_request: Annotated[int, BeforeValidator(size_from("1KB"))] = 1024 * 1024
    """the largest body that is read"""
    max_events: Annotated[int, BeforeValidator(values.whole(1))] = 10_000
    """how many events one request may hold"""
    max_connections: Annotated[int, BeforeValidator(values.whole(1))] = 1_000
    max_connections_per_address: Annotated[int, BeforeValidator(values.whole(1))] = 100
    keep_audit: values.PositiveDuration = "365 days"

    @property
    def keep_audit_seconds(self) -> float:
        return parse_duration(self.keep_audit)
