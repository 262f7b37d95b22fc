"""A table is read at one moment, whatever others do to it meanwhile; no Spark is needed for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import Table

from integration.cached_lakes import ORDERS, TARGET, add_files, cared_place, small_files
from integration.conftest import MakePlace, Place
from integration.filled_lakes import catalog_of
from tidegate.errors import BusyError, DestinationError
from tidegate.lake.consistent import read_consistently
from tidegate.lake.known_files import normal_path
from tidegate.lake.metadata import open_table
from tidegate.lake.table_facts import facts_of, read_facts
from tidegate.pipeline.target_facts import read_target_facts

WITHOUT_SPARK = """
import sys
from tidegate.model.relation import Relation
from tidegate.project import Project
from tidegate.lake.table_facts import read_facts
facts = read_facts(Project.open(sys.argv[1]).context.catalog("lake"), Relation("raw", "orders"))
print(facts.data.files, "pyspark" in sys.modules)
"""


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = cared_place(make_place)
    small_files(place, files=3)
    return place


def losing(place: Place, times: int) -> Callable[[Table], int]:
    """A reader whose files are gone so often, as a commit has come in between."""
    calls = 0

    def read(table: Table) -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            add_files(place)
            raise FileNotFoundError("expired")
        return facts_of(table).data.files

    return read


def test_a_table_that_changes_while_it_is_read_is_read_again(place: Place) -> None:
    assert read_consistently(catalog_of(place), ORDERS, losing(place, 2)) == 5


def test_a_table_that_never_stops_changing_is_busy(place: Place) -> None:
    with pytest.raises(BusyError, match="faster than it can be read"):
        read_consistently(catalog_of(place), ORDERS, losing(place, 99))


def test_a_table_that_has_lost_a_file_or_has_half_of_it_says_so(place: Place) -> None:
    catalog = catalog_of(place)
    table = open_table(catalog, ORDERS)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (one, *_) = snapshot.manifests(table.io)
    manifest = Path(normal_path(one.manifest_path))
    kept = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(DestinationError, match="names a file that is not there"):
        read_facts(catalog, ORDERS)
    manifest.write_bytes(kept[: len(kept) // 3])
    with pytest.raises(DestinationError, match="cannot be read"):
        read_facts(catalog, ORDERS)


def test_small_is_what_is_small_by_the_size_that_the_project_wants(make_place: MakePlace) -> None:
    wanted = '[maintenance]\nrewrite_data_files = { target_file_size = "1MB" }'
    place = cared_place(make_place, wanted)
    small_files(place, files=3)
    table = open_table(catalog_of(place), ORDERS)
    assert table is not None
    assert facts_of(table).target_file_bytes == 512 * 1024 * 1024
    with place.open() as project:
        facts = read_target_facts(project.context, TARGET)
    assert facts is not None
    assert (facts.target_file_bytes, facts.small.files) == (1024 * 1024, 3)
    assert facts_of(table, 100).small.files == 0


def test_facts_are_read_without_spark(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(place.folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["3", "False"]
