"""`tidegate prove` and the testing kit for a sync whose target is a lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import FAST
from integration.conftest import MakePlace, Place
from integration.lakes import make_lake_project
from integration.test_prove import ORDERS, TABLE, Proved, fill, scratch_databases
from tidegate.postgres.embedded import EmbeddedServer

LAKE = {**ORDERS, "target": "lake:raw.orders"}
OWN = ("branch.created", "branch.staged", "intent.noted", "branch.forwarded", "branch.dropped")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state of all projects here, with an embedded server that runs already."""
    folder = tmp_path_factory.mktemp("state")
    server = EmbeddedServer(folder / "postgres", FAST)
    server.start()
    yield folder
    server.stop("immediate")


def make_shop(make_place: MakePlace, state: Path, *syncs: dict[str, Any], **options: Any) -> Place:
    _, place = make_lake_project(
        make_place, None, *syncs, databases=2, spark={"master": "local[2]"}, **options
    )
    toml = place.folder / "tidegate.toml"
    text = toml.read_text()
    toml.write_text(text.replace("[project]\n", f'[project]\nstate = "{state}"\n', 1))
    place.source.execute(TABLE)
    return place


@pytest.mark.chaos
def test_a_sync_into_a_lake_survives_a_kill_at_every_point_and_leaves_nothing_around(
    make_place: MakePlace, state: Path
) -> None:
    # A catalog that nobody answers at: what the proof would write to it would fail.
    place = make_shop(make_place, state, LAKE)
    toml = place.folder / "tidegate.toml"
    external = '{ type = "iceberg", catalog = "rest", uri = "http://127.0.0.1:9/" }'
    toml.write_text(toml.read_text().replace('{ type = "iceberg" }', external, 1))
    fill(place)
    proved = Proved(place, "--json")
    assert proved.code == 0, proved.out
    document = proved.document
    killed = {kill["point"] for kill in document["kills"] if kill["killed"]}
    assert killed >= {*OWN, "publish.committed", "stage.written", "job.finished"}
    assert (document["lost"], document["doubled"], document["finding"]) == (0, 0, None)
    assert 'the catalog of "lake" is left alone' in " ".join(document["notes"])
    assert scratch_databases(state) == []
    assert list((state / "prove").glob("*")) == []
    assert not (state / "lake").exists()
