"""What docs/guides/events.md shows, block by block."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "events.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every line that the reader is told to type, in order."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line.partition("  #")[0].rstrip() for line in lines]


def export() -> dict[str, Any]:
    """The sync that brings facts into a lake."""
    (text,) = blocks("toml")
    (name,) = tomllib.loads(text)["sync"]
    return {"name": name, **tomllib.loads(text)["sync"][name]}


def grants() -> str:
    (text,) = blocks("sql")
    return text
