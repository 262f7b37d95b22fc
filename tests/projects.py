"""The text of tidegate.toml, for every project of the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

EMBEDDED_LAKE = {"type": "iceberg"}


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections with their values; a value of None is left out."""
    return "".join(
        f"[{section}]\n"
        + "".join(f"{name} = {_value(one)}\n" for name, one in values.items() if one is not None)
        + "\n"
        for section, values in sections.items()
    )


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) + " }"
    # A JSON string, number, boolean or list of them is TOML as well.
    return json.dumps(value, ensure_ascii=False)
