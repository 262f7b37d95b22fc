"""[events], [history], [notify], [serve]."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, SecretStr, model_validator

from tidegate.config import value_types as values
from tidegate.config.setting_errors import SettingConflict
from tidegate.config.value_types import Section
from tidegate.core.cron import Schedule
from tidegate.core.units import parse_duration, size_from


class EventSettings(Section):
    """`[events]`: the events of this project; without a `connection` it has none."""

    connection: values.TextOrNone = None
    """the Postgres that holds raw events, facts and views"""
    model: values.Text = "events.toml"
    """the file that says what events become, beside tidegate.toml"""
    raw_table: values.Text = "public.raw_events"
    schedule: values.TextOrNone = "*/5 * * * *"
    batch_size: Annotated[int, BeforeValidator(values.whole(1, 1_000_000))] = 20_000
    """how many events are claimed, and committed, together"""
    time_budget: values.PositiveDuration = "4 minutes"
    """when the second phase stops claiming"""
    spark_from: Annotated[int, BeforeValidator(values.whole(0, 1_000_000))] = 2_000
    """smaller batches are parsed by the process itself while no Spark runs"""
    max_event: Annotated[int, BeforeValidator(size_from("1KB"))] = 256 * 1024
    """a larger event is recorded, and fails"""
    max_age: values.PositiveDuration = "1826 days"
    """an event older than this when it was received fails"""
    max_ahead: values.PositiveDuration = "31 days"
    """so does one that is this far in the future"""
    months_ahead: Annotated[int, BeforeValidator(values.whole(0, 24))] = 2
    """partitions that are made before anything needs them"""
    keep_months: Annotated[int, BeforeValidator(values.whole(0, 1200))] = 0
    """older partitions of the facts are detached; 0 keeps all"""

    @model_validator(mode="after")
    def _due_some_day(self) -> EventSettings:
        if self.schedule is not None:
            try:
                Schedule(self.schedule)
            except ValueError as error:
                raise SettingConflict(
                    "schedule", f'is "{self.schedule}"; expected {error}'
                ) from None
        return self

    @property
    def time_budget_seconds(self) -> float:
        return parse_duration(self.time_budget)

    @property
    def max_age_seconds(self) -> float:
        return parse_duration(self.max_age)

    @property
    def max_ahead_seconds(self) -> float:
        return parse_duration(self.max_ahead)


class HistorySettings(Section):
    """`[history]`: the history of tasks."""

    record_task_history: bool = True
    keep: values.PositiveDuration = "90 days"

    @property
    def keep_seconds(self) -> float:
        """How long a run is remembered; the month it lies in goes as a whole."""
        return parse_duration(self.keep)


EVENTS = ("failure", "disable", "recovery")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\uffff]")


def _webhook(value: object) -> object:
    expected = 'a URL such as "https://hooks.example.com/T0/B0/x"'
    given = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(given, str):
        raise ValueError(expected)
    if not given.strip():
        return None
    try:
        parts = urlsplit(given)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or _UNPRINTABLE.search(given) or "@" in parts.netloc:
        # The URL is a secret: from None, so that nothing repeats it.
        raise ValueError(expected) from None
    return given


def _command(value: object) -> tuple[str, ...]:
    expected = 'a program and its arguments, for example ["/usr/local/bin/page", "data"]'
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given or not given[0]:
        raise ValueError(expected)
    if any(not isinstance(one, str) or "\0" in one for one in given):
        raise ValueError(expected)
    return tuple(given)


def _events(value: object) -> tuple[str, ...]:
    expected = f"a list of {', '.join(EVENTS)}"
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or any(one not in EVENTS for one in given):
        raise ValueError(expected)
    return tuple(dict.fromkeys(given))


class NotifySettings(Section):
    """`[notify]`: a webhook, a command, or both."""

    webhook: Annotated[SecretStr | None, BeforeValidator(_webhook)] = None
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_command)] = None
    on: Annotated[
        tuple[Literal["failure", "disable", "recovery"], ...], BeforeValidator(_events)
    ] = ("failure", "disable", "recovery")
    repeat_after: values.PositiveDuration = "6 hours"

    @property
    def repeat_after_seconds(self) -> float:
        """How long a streak of failures goes on before it is told again."""
        return parse_duration(self.repeat_after)

    @property
    def channels(self) -> tuple[str, ...]:
        """The ways in which people are told."""
        return (*(["webhook"] if self.webhook else []), *(["command"] if self.command else []))


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
