"""`${VAR}` and `${VAR:-default}` in text; `$${` stands for a literal `${`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(
    r"(?P<escape>\$\$\{)"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<malformed>\$\{)"
)


class UnsetVariable(ValueError):
    """The text needs a variable that is not set."""

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"needs the variable {variable}, which is not set; set it in the environment or in "
            f".env, or write ${{{variable}:-default}}"
        )
        self.variable = variable


class MalformedReference(ValueError):
    """The text has a `${` that begins no reference."""

    def __init__(self) -> None:
        super().__init__(
            "has a ${ that is not ${VAR} or ${VAR:-default}; write $${ for a literal ${"
        )


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with its references replaced; what they bring in is not looked at again.

    >>> interpolate("${HOST:-localhost}:5432", {})
    'localhost:5432'
    """

    def replace(token: re.Match[str]) -> str:
        if token["escape"]:
            return "${"
        if token["malformed"]:
            raise MalformedReference
        value = variables.get(token["name"])
        if token["default"] is not None:
            return value or token["default"]  # as in a shell, :- also replaces an empty value
        if value is None:
            raise UnsetVariable(token["name"])
        return value

    return _TOKEN.sub(replace, text)


def variables_in(text: str) -> set[str]:
    """Return the names that `text` refers to."""
    return {token["name"] for token in _TOKEN.finditer(text) if token["name"]}
