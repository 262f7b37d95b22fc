"""Every route with what its description allows, and with what it does not: never a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from databases import Databases
from integration.cached_lakes import ORDERS, cared_place, refresh, small_files
from integration.raw_events import write_model
from integration.served import serving
from integration.shared_places import shared_places

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text("utf-8"))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {one.ok().label: one.ok() for one in SCHEMA.get_all_operations()}
CONFORM = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# A table that is there, so that more than the refusal of others is tried.
HERE = {"db": "raw", "table": "orders"}


@pytest.fixture(scope="module")
def client(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """One service for all of it: what one request leaves is what the next one finds."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("schema")) as make_place:
        place = cared_place(make_place, '[events]\nconnection = "warehouse"')
        write_model(place)
        small_files(place, ORDERS, files=3)
        refresh(place)
        with place.open() as project, serving(project) as client:
            yield client


@pytest.mark.parametrize("most", [4, pytest.param(40, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("label", OPERATIONS)
def test_whatever_is_sent_is_answered_as_described(
    client: httpx.Client, label: str, most: int
) -> None:
    operation = OPERATIONS[label]
    base = str(client.base_url).rstrip("/")

    def send(case: Case) -> None:
        answer = case.call(base_url=base)
        if answer.status_code >= 500:
            document: dict[str, Any] = answer.json()
            # Others drain, as they may; anything else of this kind would be ours.
            assert document["type"] in ("/problems/draining", "/problems/not-ready"), document
            assert answer.headers["retry-after"]
        case.validate_response(answer, checks=CONFORM)

    for mode in GenerationMode:
        # Where nothing can be said, nothing can be said wrongly.
        said = operation.body or any(operation.iter_parameters())
        if mode is GenerationMode.NEGATIVE and not said:
            continue
        strategy = operation.as_strategy(mode)
        if "{table}" in label and mode is GenerationMode.POSITIVE:
            strategy |= operation.as_strategy(mode, path_parameters=HERE)
        client.put("/drain", json={"draining": False})
        few = settings(
            max_examples=most,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        )
        few(given(case=strategy)(send))()
