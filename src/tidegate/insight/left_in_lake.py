"""Files that attempts have staged in a lake and nobody needs any more, removed without Spark."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidegate.lake.catalog import Catalog
from tidegate.lake.files import delete_folder
from tidegate.lake.metadata import file_io
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.staged_folders import StagedFolder, StagedFolders
from tidegate.log import log
from tidegate.model.lake import branch_name
from tidegate.model.relation import Relation


@dataclass(frozen=True, slots=True)
class LeftInLake:
    """What the ledger of one lake says was staged."""

    catalog: Catalog
    ledger: Ledger

    def discard(
        self, relation: Relation | None, live: Collection[str], branches: Collection[str] = ()
    ) -> None:
        """Remove what was staged for a table, or for any, except by attempts at work.

        Files that may be the table's own stay. What cannot be removed stays noted, and so does an
        attempt whose branch is there still: the next run into the table drops it.
        """
        folders = StagedFolders(self.ledger)
        table = None if relation is None else str(relation)
        with self.ledger.connect() as connection:
            found = folders.of_table(connection, table)
            dead = [one for one in found if one.attempt_id not in live]
            kept = {one.attempt_id for one in dead if not one.adopted and not self._delete(one)}
            kept |= {one.attempt_id for one in dead if branch_name(one.attempt_id) in branches}
            for attempt_id in {one.attempt_id for one in dead} - kept:
                folders.forget(connection, attempt_id, ended=True)

    def _delete(self, one: StagedFolder) -> bool:
        try:
            delete_folder(file_io(self.catalog, one.location), one.location, one.folder)
        except Exception as error:
            # Each storage has errors of its own.
            log.warning("staged_files_left", folder=one.folder, error=type(error).__name__)
            return False
        return True
