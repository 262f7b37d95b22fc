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

from conftest import MakeDatabase
from integration.cached_lakes import ORDERS, cared_place, refresh, small_files
from integration.conftest import MakePlace
from integration.raw_events import write_model
from integration.served import serving

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
MOST = 20
TRIED = [
    (label, mode)
    for label, operation in OPERATIONS.items()
    for mode in GenerationMode
    # Where nothing can be said, nothing can be said wrongly.
    if mode is GenerationMode.POSITIVE or operation.body or any(operation.iter_parameters())
]


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """One service for all of it: what one request leaves is what the next one finds."""
    server, kept = request.getfixturevalue("server"), request.getfixturevalue("kept_databases")
    names: list[str] = []

    def make(hint: str = "db") -> str:
        names.append(kept.make(hint))
        return str(server.conninfo(names[-1]))

    maker: MakeDatabase = make
    place = cared_place(
        MakePlace(maker, tmp_path_factory.mktemp("schema")), '[events]\nconnection = "warehouse"'
    )
    write_model(place)
    small_files(place, ORDERS, files=3)
    refresh(place)
    with place.open() as project, serving(project) as client:
        yield client
    kept.give_back(*names)


@pytest.mark.parametrize(("label", "mode"), TRIED)
def test_whatever_is_sent_is_answered_as_described(
    client: httpx.Client, label: str, mode: GenerationMode
) -> None:
    operation = OPERATIONS[label]
    base = str(client.base_url).rstrip("/")
    strategy = operation.as_strategy(mode)
    if "{table}" in label and mode is GenerationMode.POSITIVE:
        strategy |= operation.as_strategy(mode, path_parameters=HERE)
    client.put("/drain", json={"draining": False})

    @settings(
        max_examples=MOST,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=strategy)
    def send(case: Case) -> None:
        answer = case.call(base_url=base)
        if answer.status_code >= 500:
            document: dict[str, Any] = answer.json()
            # Others drain, as they may; anything else of this kind would be ours.
            assert document["type"] in ("/problems/draining", "/problems/not-ready"), document
            assert answer.headers["retry-after"]
        case.validate_response(answer, checks=CONFORM)

    send()
