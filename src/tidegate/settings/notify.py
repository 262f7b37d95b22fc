"""`[notify]`: who is told when something fails, is disabled or works again."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, SecretStr

from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.section import Section

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
