"""How many files dead attempts have probably left in lakes, from what is noted of them alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidegate.control.died import Died, count_died
from tidegate.control.jobs import Jobs
from tidegate.ledger.staged_folders import StagedFolders
from tidegate.model.lake import lake_resource
from tidegate.model.orphan_estimate import OrphanEstimate
from tidegate.model.relation import Endpoint
from tidegate.model.table_facts import TableFacts
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection


def estimate_orphans(
    context: Context, control: Connection, tables: Mapping[Endpoint, TableFacts]
) -> dict[Endpoint, OrphanEstimate]:
    """For many tables at once; no file is listed."""
    identities = {one: context.catalog(one).identity for one in {t.connection for t in tables}}
    resources = {
        target: lake_resource(identities[target.connection], target.relation) for target in tables
    }
    died = count_died(context.plane, control, set(resources.values()))
    noted = _noted(context, control, identities)
    found = {}
    for target, facts in tables.items():
        dead = died.get(resources[target], Died(None, 0))
        found[target] = OrphanEstimate.of(
            dead.since,
            dead_attempts=dead.attempts,
            noted_folders=noted.get(target, 0),
            files_per_load=facts.added_files_per_commit,
            bytes_per_file=facts.added_bytes_per_file,
        )
    return found


def _noted(
    context: Context, control: Connection, connections: Collection[str]
) -> dict[Endpoint, int]:
    """Folders that attempts have staged files in which are not at work any more."""
    live = Jobs(context.plane).live_attempts(control)
    found: dict[Endpoint, int] = {}
    for name in connections:
        ledger = context.ledger(name)
        with ledger.connect() as connection:
            for table, attempt_id in StagedFolders(ledger).unadopted(connection):
                if attempt_id not in live:
                    target = Endpoint.parse(f"{name}:{table}")
                    found[target] = found.get(target, 0) + 1
    return found
