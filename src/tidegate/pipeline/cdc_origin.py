"""Where changes come from: the slot and publication of a sync, and whether they still lead on.

A slot that is read behind its beginning gives nothing and no error, so everything that could have
taken changes out of it is looked at before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from tidegate.errors import ChangesLost
from tidegate.model.lsn import lsn_value
from tidegate.model.server import Fate, Server
from tidegate.model.slot import Origin, SlotState, publication_name, slot_name
from tidegate.model.sync import Sync
from tidegate.model.watermark import Watermark
from tidegate.pipeline.cdc_obstacles import loads_generated
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource
from tidegate.sources.publications import Publication, PublicationState
from tidegate.sources.slots import PLUGIN, Slot


@dataclass(frozen=True, slots=True)
class ChangeLog:
    """The slot and the publication of one sync, in a session of its source."""

    sync: Sync
    slot: Slot
    publication: Publication
    database: str

    @classmethod
    def of(
        cls, sync: Sync, source: PostgresSource, connection: Connection, control_id: UUID
    ) -> ChangeLog:
        # Two control planes, or two databases of one server, must not share a slot.
        database, mine = connection.info.dbname, str(control_id)
        columns = [column.name for column in source.columns]
        return cls(
            sync,
            Slot(connection, slot_name(sync.project, sync.source.connection, mine, database)),
            Publication(
                connection,
                publication_name(sync.project, sync.name, mine),
                source.table,
                loads_generated(connection, source.table, columns),
            ),
            database,
        )

    @property
    def connection(self) -> Connection:
        return self.slot.connection

    def is_usable(self, state: SlotState | None) -> bool:
        """Whether a slot of our name is one that can be read, wherever it begins."""
        return (
            state is not None
            and not state.is_lost
            and state.plugin == PLUGIN
            and state.database == self.database
        )

    def origin(self, publication: PublicationState, server: Server) -> Origin:
        """What is remembered of it all."""
        return Origin(
            server.system,
            server.timeline,
            self.slot.name,
            publication.oid,
            publication.member or 0,
        )

    def check(
        self, watermark: Watermark, read_history: Callable[[int], str | None]
    ) -> tuple[Origin, Server]:
        """Refuse to go on from a watermark after which changes have been lost."""
        server = read_server(self.connection)
        before = Origin.from_json((watermark.declaration or {})["cdc"])
        assert watermark.value is not None
        self._check_server(before, server, watermark.value, read_history)
        self._check_slot(before, watermark.value)
        found = self.origin(self._check_publication(before), server)
        return replace(found, tables=before.tables, seen=before.seen), server

    def _check_server(
        self,
        before: Origin,
        server: Server,
        value: str,
        read_history: Callable[[int], str | None],
    ) -> None:
        reached = Server(before.system, "", before.timeline, value)
        fate, left = reached.fate(server, read_history)
        if fate is Fate.OTHER_SERVER:
            raise self._lost(
                f"its source was the server with the system identifier {before.system}, and is "
                f"now {server.system}, whose log is another"
            )
        if fate in (Fate.BRANCHED, Fate.UNTOLD):
            raise self._lost(
                f"its source was restored, or another server took over: it is on timeline "
                f"{server.timeline}, which left timeline {before.timeline} at "
                f"{left or 'a point that it does not tell'}, and changes up to {value} are loaded"
            )
        if fate is Fate.SET_BACK:
            raise self._lost(
                f"its source has got to {server.lsn}, and changes up to {value} are loaded: it "
                "was restored from a backup"
            )

    def _check_slot(self, before: Origin, value: str) -> None:
        name = self.slot.name
        if before.slot != name:
            raise self._lost(f"it was loaded from slot {before.slot}, and would now be from {name}")
        state = self.slot.look()
        if state is None:
            raise self._lost(
                f"slot {name} is gone: it was dropped, or the source was restored from a backup, "
                "or another server took over"
            )
        if state.is_lost:
            raise self._lost(
                f"the server has given up slot {name} ({state.lost_because}): more of its log was "
                "waiting than max_slot_wal_keep_size allows, or nobody read it for too long"
            )
        if not self.is_usable(state):
            raise self._lost(
                f"slot {name} was made anew, for {state.plugin} in database {state.database}"
            )
        assert state.confirmed is not None
        if lsn_value(state.confirmed) > lsn_value(value):
            raise self._lost(
                f"there is a gap: slot {name} begins at {state.confirmed}, and changes are loaded "
                f"up to {value}; the slot was made anew or read by somebody else, or the "
                "destination was restored from a backup"
            )

    def _check_publication(self, before: Origin) -> PublicationState:
        name, found = self.publication.name, self.publication.look()
        if found is None:
            raise self._lost(f"publication {name} was dropped, and changes went by since")
        if found.obstacle is not None:
            raise self._lost(f"publication {name} was altered: {found.obstacle}")
        if (before.publication, before.member) != (found.oid, found.member):
            raise self._lost(
                f"publication {name} was made anew, or {self.sync.source.relation} was taken out "
                "of it or made anew itself, and changes went by in between"
            )
        return found

    def _lost(self, what: str) -> ChangesLost:
        return changes_lost(self.sync, what)


def changes_lost(sync: Sync, what: str) -> ChangesLost:
    """What is said when not all changes can be had any more, with the way back."""
    return ChangesLost(
        f"sync {sync.name}: {what}",
        f"to copy the table again and go on from there: tidegate run {sync.name} --full-refresh",
    )
