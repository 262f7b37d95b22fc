"""The description of the service: checked in, complete, and with examples that fit it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import validator_for

from tidegate.service.app import routes
from tidegate.service.problems import PROBLEM_KINDS

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(json.dumps(routes().openapi()))
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
NAMES = [name for name, _ in OPERATIONS]


def check(example: Any, schema: dict[str, Any]) -> None:
    validator_for({"components": DOCUMENT["components"], **schema}).validate(example)


def test_the_description_is_the_one_that_is_checked_in() -> None:
    text = json.dumps(DOCUMENT, ensure_ascii=False, indent=2) + "\n"
    assert KEPT.read_text(encoding="utf-8") == text, (
        "if this is on purpose: tidegate serve --openapi > docs/openapi.json"
    )


def test_every_route_that_was_promised_is_there() -> None:
    table = "/tables/{db}/{table}"
    assert set(NAMES) == {
        f"POST {table}/maintenance",
        f"GET {table}/maintenance/recommendation",
        f"GET {table}/maintenance/history",
        f"GET {table}/status",
        f"GET {table}/status/cached",
        f"GET {table}/health",
        "GET /tables",
        "POST /tables/refresh",
        "GET /jobs",
        "GET /jobs/{job_id}",
        "POST /jobs/{job_id}/cancel",
        "GET /tasks",
        "GET /tasks/{task_id}",
        "GET /tasks/{task_id}/events",
        "POST /events",
        "GET /events/status",
        "GET /drain",
        "PUT /drain",
        "GET /syncs",
        "GET /watermarks",
        "GET /markers",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /audit",
        "GET /problems",
        "GET /problems/{name}",
    }


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=NAMES)
def test_every_answer_has_an_example_that_fits_its_schema(
    name: str, operation: dict[str, Any]
) -> None:
    for status, answer in operation["responses"].items():
        if status == "304":
            continue
        for content in answer["content"].values():
            references = [one["$ref"] for one in content.get("examples", {}).values()]
            examples = [DOCUMENT["components"]["examples"][one[22:]]["value"] for one in references]
            examples += [content["example"]] if "example" in content else []
            assert examples, (name, status)
            for example in examples:
                check(example, content["schema"])


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=NAMES)
def test_every_route_says_what_it_is_for_and_who_may(name: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["tags"][0] in {one["name"] for one in DOCUMENT["tags"]}
    open_to_all = name.split()[1] in ("/healthz", "/readyz") or "/problems" in name
    assert ("security" in operation) == (not open_to_all)
    if not open_to_all:
        assert operation["security"] == [{"token": [operation["x-scope"]]}]
        assert {"401", "403", "503"} <= set(operation["responses"])
        changes = not name.startswith("GET")
        assert changes == ("415" in operation["responses"])
        assert operation["x-scope"] == "read" if not changes and "audit" not in name else True


def test_every_body_that_is_taken_has_an_example() -> None:
    bodies = [one for _, one in OPERATIONS if "requestBody" in one]
    assert len(bodies) == 3
    for one in bodies:
        content = one["requestBody"]["content"]["application/json"]
        schema = content["schema"]
        if not schema:
            # An event may be anything.
            assert content["examples"]
            continue
        found = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for example in found["examples"]:
            check(example, found)


@pytest.mark.parametrize("name", PROBLEM_KINDS)
def test_every_problem_is_documented_under_its_type(name: str) -> None:
    page = (ROOT / "docs" / "guides" / "service.md").read_text(encoding="utf-8")
    found = re.search(rf"^\*\*`/problems/{name}`\*\* \((\d+)\)\. (.+?)\n\n", page, re.M | re.S)
    assert found is not None, name
    assert int(found.group(1)) == PROBLEM_KINDS[name].status
    assert len(found.group(2)) > 40


def test_every_route_is_on_the_page() -> None:
    page = (ROOT / "docs" / "guides" / "service.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}`" in page, name
