"""Where in an event a value lies: `$.account.id`, `$.items[0].price`, `$["odd name"]`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tidegate.errors import DeclarationError

_STEP = re.compile(
    r"""\.(?P<name>[A-Za-z_$][A-Za-z0-9_$-]*)|\[(?P<index>\d{1,6})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)


class _Missing:
    """What a path finds where nothing is; a null in the event is None."""


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class JsonPath:
    """Steps from the top of an event down to one value: names of members and places in arrays."""

    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Read a path; only members and places can be named, so that it means one value."""
        steps: list[str | int] = []
        position = 1
        while text.startswith("$") and position < len(text):
            match = _STEP.match(text, position)
            if match is None:
                break
            name, index, quoted = match.group("name", "index", "quoted")
            steps.append(name if name else int(index) if index else json.loads(quoted))
            position = match.end()
        if not steps or position != len(text):
            raise DeclarationError(
                f"{text!r} is not a path into an event",
                'write $.member, $.member.inner, $.list[0] or $["odd name"]',
            )
        return cls(tuple(steps))

    def find(self, value: Any) -> Any:
        """The value there, or MISSING."""
        for step in self.steps:
            if isinstance(step, str):
                if not isinstance(value, dict) or step not in value:
                    return MISSING
            elif not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        return value

    def __str__(self) -> str:
        return "$" + "".join(
            f"[{step}]"
            if isinstance(step, int)
            else f".{step}"
            if _STEP.fullmatch(f".{step}")
            else f"[{json.dumps(step, ensure_ascii=False)}]"
            for step in self.steps
        )
