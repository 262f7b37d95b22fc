"""The publication, and whether the slot still leads on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from psycopg import errors as pg
from psycopg import sql

from tidegate.config.sync import Sync
from tidegate.core.errors import ChangesLost, SourceError
from tidegate.core.relation import RelationKind, Table
from tidegate.core.watermark import Watermark, lsn_value
from tidegate.load.sources.cdc.requirements import loads_generated
from tidegate.load.sources.cdc.slot import (
    PLUGIN,
    Slot,
    SlotOrigin,
    SlotState,
    publication_name,
    slot_name,
)
from tidegate.load.sources.postgres import PostgresSource
from tidegate.postgres.catalog import read_server
from tidegate.postgres.connection import Connection, first_line
from tidegate.postgres.queries import qualified
from tidegate.postgres.server_identity import Fate, Server

_GENERATED_SINCE = 180000
_LOOK = """
SELECT p.oid::bigint, r.oid::bigint, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate,
       to_jsonb(r) ->> 'prqual' IS NULL, to_jsonb(r) ->> 'prattrs' IS NULL,
       p.pubviaroot, to_jsonb(p) ->> 'pubgencols'
FROM pg_publication p
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %(table)s
WHERE p.pubname = %(name)s
"""


@dataclass(frozen=True, slots=True)
class PublicationState:
    """A publication as it is; `obstacle` is what keeps changes of the table out of it."""

    oid: int
    member: int | None
    obstacle: str | None


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication of one table, in a session of its database."""

    connection: Connection
    name: str
    table: Table
    generated: bool = False
    """whether stored generated columns are loaded, which only newer servers publish"""

    def look(self) -> PublicationState | None:
        """How it stands; None when there is none of that name."""
        row = self.connection.execute(
            _LOOK, {"name": self.name, "table": self.table.oid}
        ).fetchone()
        if row is None:
            return None
        oid, member, everything, unfiltered, all_columns, via_root, generated = row
        obstacle = None
        if member is None:
            obstacle = f"{self.table.relation} is not in it"
        elif not everything:
            obstacle = "it does not publish insert, update, delete and truncate"
        elif not unfiltered or not all_columns:
            obstacle = "it leaves out rows or columns"
        elif self.table.kind is RelationKind.PARTITIONED and not via_root:
            obstacle = "publish_via_partition_root is off"
        elif self.generated and generated != "s":
            obstacle = "it does not publish generated columns"
        return PublicationState(int(oid), None if member is None else int(member), obstacle)

    def make(self) -> PublicationState:
        """Make it, unless it is there as it must be; one that is not so is made anew."""
        found = self.look()
        if found is None or found.obstacle is not None:
            self._make(anew=found is not None)
            found = self.look()
        assert found is not None
        return found

    def _make(self, *, anew: bool) -> None:
        options = ["publish_via_partition_root = true"]
        if self.generated and self.connection.info.server_version >= _GENERATED_SINCE:
            options.append("publish_generated_columns = stored")
        try:
            with self.connection.transaction():
                if anew:
                    self.drop()
                self.connection.execute(
                    sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})").format(
                        sql.Identifier(self.name),
                        qualified(self.table.relation),
                        sql.SQL(", ".join(options)),
                    )
                )
        except pg.InsufficientPrivilege as error:
            raise SourceError(
                f"the publication {self.name} cannot be made: {first_line(error)}",
                f"as the owner of the table: {self.statement()}",
            ) from None

    def statement(self) -> str:
        """What a person with the right would run."""
        options = "publish_via_partition_root = true"
        if self.generated and self.connection.info.server_version >= _GENERATED_SINCE:
            options += ", publish_generated_columns = stored"
        return f"CREATE PUBLICATION {self.name} FOR TABLE {self.table.relation} WITH ({options})"

    def drop(self) -> None:
        drop_publication(self.connection, self.name)


def drop_publication(connection: Connection, name: str) -> None:
    """Drop a publication, if it is there."""
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


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

    def origin(self, publication: PublicationState, server: Server) -> SlotOrigin:
        """What is remembered of it all."""
        return SlotOrigin(
            server.system,
            server.timeline,
            self.slot.name,
            publication.oid,
            publication.member or 0,
        )

    def check(
        self, watermark: Watermark, read_history: Callable[[int], str | None]
    ) -> tuple[SlotOrigin, Server]:
        """Refuse to go on from a watermark after which changes have been lost."""
        server = read_server(self.connection)
        before = SlotOrigin.from_json((watermark.declaration or {})["cdc"])
        assert watermark.value is not None
        self._check_server(before, server, watermark.value, read_history)
        self._check_slot(before, watermark.value)
        found = self.origin(self._check_publication(before), server)
        return replace(found, tables=before.tables, seen=before.seen), server

    def _check_server(
        self,
        before: SlotOrigin,
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

    def _check_slot(self, before: SlotOrigin, value: str) -> None:
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

    def _check_publication(self, before: SlotOrigin) -> PublicationState:
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
