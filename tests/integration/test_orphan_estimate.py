"""What dead attempts have probably left in a lake, from what the control database notes of them."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from integration.cached_lakes import ITEMS, TARGET, cared_place, opened, small_files
from integration.conftest import MakePlace, Place
from tidegate.insight.table_health import list_health, table_health
from tidegate.insight.tables import find_table, list_tables
from tidegate.lake.table_facts import read_facts
from tidegate.ledger.staged_folders import StagedFolder, StagedFolders
from tidegate.model.orphan_estimate import OrphanEstimate
from tidegate.model.relation import Endpoint
from tidegate.model.table_facts import TableFacts
from tidegate.pipeline.orphan_estimate import estimate_orphans
from tidegate.postgres.connect import Connection
from tidegate.project import Project
from tidegate.runtime.refreshing import Refresher

OTHER = Endpoint("lake", ITEMS)


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = cared_place(make_place, "[maintenance]\nthresholds = { orphan_files = 3 }")
    small_files(place, files=4)
    small_files(place, ITEMS)
    return place


def facts(project: Project, target: Endpoint = TARGET) -> TableFacts:
    found = read_facts(project.context.catalog("lake"), target.relation)
    assert found is not None
    return found


def estimated(project: Project, control: Connection) -> OrphanEstimate:
    tables = {one: facts(project, one) for one in (TARGET, OTHER)}
    found = estimate_orphans(project.context, control, tables)
    assert found[OTHER] == OrphanEstimate(None), "another table's attempts are no matter"
    return found[TARGET]


def attempt(project: Project, control: Connection, outcome: str | None, ago: str = "0 s") -> str:
    """A job at the table with an attempt that went so."""
    resource = project.context.destination(TARGET).identify()
    job_id, attempt_id = uuid4(), uuid4().hex
    control.execute(
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, resource, payload,"
        " submitted_by) VALUES (%s, %s, 'sync', 'orders', %s, '{}', 'test')",
        (job_id, project.name, resource),
    )
    control.execute(
        "INSERT INTO tidegate_control.job_attempts (attempt_id, job_id, worker_id, fence,"
        " finished_at, outcome) VALUES (%s, %s, 'w', 1, now() - %s::interval, %s)",
        (attempt_id, job_id, ago, outcome),
    )
    return attempt_id


def removed(project: Project, control: Connection, status: str, ago: str) -> None:
    """Orphans were looked for."""
    job_id = uuid4()
    control.execute(
        "INSERT INTO tidegate_control.jobs (job_id, project, kind, name, resource, payload,"
        " submitted_by) VALUES (%s, %s, 'maintenance', %s, %s, '{}', 'test')",
        (job_id, project.name, str(TARGET), project.context.destination(TARGET).identify()),
    )
    control.execute(
        "INSERT INTO tidegate_control.job_actions (job_id, position, attempt_id, action, detail,"
        " finished_at) VALUES (%s, 1, 'a', 'remove_orphan_files', %s, now() - %s::interval)",
        (job_id, Jsonb({"status": status}), ago),
    )


def test_attempts_that_went_wrong_since_orphans_were_last_removed_count(place: Place) -> None:
    with opened(place) as (project, control):
        assert estimated(project, control) == OrphanEstimate(None)
        for outcome in ("lost", "error", "failed", "done", "cancelled", "given back", None):
            attempt(project, control, outcome)
        found = estimated(project, control)
        assert (found.since, found.dead_attempts, found.files) == (None, 3, 3)
        assert found.bytes == pytest.approx(3 * facts(project).added_bytes_per_file, abs=1)

        attempt(project, control, "lost", "9 days")
        removed(project, control, "failed", "0 s")
        assert estimated(project, control).dead_attempts == 4, "a failed removal removed nothing"
        removed(project, control, "done", "30 days")
        removed(project, control, "done", "5 days")
        found = estimated(project, control)
        assert found.dead_attempts == 3
        assert found.since is not None


def test_folders_that_dead_attempts_have_noted_count_unless_a_table_has_taken_them(
    place: Place,
) -> None:
    with opened(place) as (project, control):
        ledger = project.context.ledger("lake")
        ledger.ensure()
        folders = StagedFolders(ledger)
        with ledger.connect() as connection:
            for name in ("one", "two", "taken"):
                noted = StagedFolder(name, f"dead-{name}", "file:/x")
                folders.note(connection, str(TARGET.relation), noted)
            folders.adopt(connection, ["taken"])
        found = estimated(project, control)
        assert (found.noted_folders, found.files) == (2, 2)


def test_health_tells_of_them_for_one_table_and_for_all(place: Place) -> None:
    with opened(place) as (project, control):
        for _ in range(3):
            attempt(project, control, "lost")
        Refresher(project.context).run_once(control)
        one = table_health(
            project.context, control, find_table(project.context, control, "raw", "orders")
        )
        assert one.health is not None
        (issue,) = [issue for issue in one.health.issues if issue.name == "orphans"]
        assert issue.evidence["dead_attempts"] == 3
        everyone = list_health(
            project.context, control, tuple(list_tables(project.context, control).tables)
        )
        told = {
            str(found.table.target): [issue.name for issue in found.health.issues]
            for found in everyone
            if found.health is not None
        }
        assert "orphans" in told["lake:raw.orders"]
        assert "orphans" not in told["lake:raw.items"]
