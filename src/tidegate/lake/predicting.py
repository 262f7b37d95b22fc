"""What an action will do to a table, told from its metadata before anything is done."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidegate.errors import DestinationError
from tidegate.lake.catalog import Catalog
from tidegate.lake.consistent import read_consistently
from tidegate.lake.orphans import find_orphans
from tidegate.lake.predicting_expiry import predict_expiry
from tidegate.lake.predicting_rewrites import (
    predict_data_files,
    predict_manifests,
    predict_position_deletes,
)
from tidegate.lake.table_properties import GC_ENABLED, may_delete_files
from tidegate.model.maintenance import (
    Action,
    ActionOptions,
    Amount,
    Effect,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
    RewritePositionDeleteFiles,
)
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    from pyiceberg.table import Table


def predict(
    catalog: Catalog,
    relation: Relation,
    action: Action,
    options: ActionOptions,
    *,
    now: datetime,
    keep: Collection[int] = (),
    orphans_before: datetime | None = None,
) -> Effect:
    """What an action will do, as far as the metadata tells.

    `keep` are snapshots that must not be forgotten; no file that was written after
    `orphans_before` counts as an orphan.
    """

    def of(table: Table) -> Effect:
        if isinstance(options, ExpireSnapshots | RemoveOrphanFiles):
            _check_may_delete(catalog, relation, action, table)
        match options:
            case ExpireSnapshots():
                return predict_expiry(table, options, now, keep)
            case RewriteDataFiles():
                return predict_data_files(table, options)
            case RewritePositionDeleteFiles():
                return predict_position_deletes(table, options)
            case RewriteManifests():
                return predict_manifests(table)
            case RemoveOrphanFiles():
                before = now - timedelta(seconds=options.older_than_seconds)
                found = find_orphans(catalog, relation, min(before, orphans_before or before))
                if found is None:
                    raise _no_table(catalog, relation)
                left = Amount(
                    found.listed.files - found.amount.files,
                    found.listed.bytes - found.amount.bytes,
                )
                return Effect("files", found.listed, left)

    effect = read_consistently(catalog, relation, of)
    if effect is None:
        raise _no_table(catalog, relation)
    return effect


def _check_may_delete(catalog: Catalog, relation: Relation, action: Action, table: Table) -> None:
    if not may_delete_files(table.metadata.properties):
        raise DestinationError(
            f"{action.value} is not for {catalog.name}:{relation}: {GC_ENABLED} is false, as "
            "another table may share its files",
            f"if none does: ALTER TABLE … SET TBLPROPERTIES ('{GC_ENABLED}' = 'true')",
        )


def _no_table(catalog: Catalog, relation: Relation) -> DestinationError:
    return DestinationError(
        f"there is no table {relation} in {catalog.name}", "see: tidegate table list"
    )
