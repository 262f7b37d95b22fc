"""The locked files are what pyproject.toml asks for, with hashes, and the bill of materials."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ASKED = {
    "requirements.lock": PROJECT["dependencies"],
    "requirements-dev.lock": [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["thrift"],
        *PROJECT["optional-dependencies"]["dev"],
    ],
}


def locked(file: str) -> dict[str, str]:
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pinned = re.fullmatch(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", line)
            assert pinned, line
            found[pinned[1]] = pinned[2]
    return found


@pytest.mark.parametrize("file", ASKED)
def test_what_is_asked_for_is_locked_with_hashes(file: str) -> None:
    found = locked(file)
    for text in ASKED[file]:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name == "tidegate" or (wanted.marker and not wanted.marker.evaluate()):
            continue
        assert name in found, f"{name}: run .venv/bin/python scripts/lock"
        assert wanted.specifier.contains(found[name]), name


def test_the_bill_of_materials_lists_what_is_locked() -> None:
    document = json.loads((ROOT / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    listed = {one["name"]: one["version"] for one in document["components"]}
    assert listed == locked("requirements.lock")
    assert listed.items() <= locked("requirements-dev.lock").items()
