"""The table cache: what the tables of a project's lakes were made of when last looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from tidegate.control.plane import ControlPlane
from tidegate.model.orphan_estimate import OrphanEstimate
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.table_facts import TableFacts
from tidegate.postgres.connect import Connection


@dataclass(frozen=True, slots=True)
class CachedCatalog:
    """When the tables of a lake were last looked at; `asked_at` is now, by the same clock."""

    catalog: str
    refreshed_at: datetime | None
    tried_at: datetime | None
    error: str | None
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class CachedTable:
    """One table as the cache has it; without facts it was seen but not read yet."""

    target: Endpoint
    metadata_location: str | None
    facts: TableFacts | None
    read_at: datetime | None
    seen_at: datetime
    error: str | None
    orphans: OrphanEstimate | None
    catalog: CachedCatalog


@dataclass(frozen=True, slots=True)
class LakeTables:
    """Reads and writes the cache of one project."""

    plane: ControlPlane
    project: str

    def clock(self, connection: Connection) -> datetime:
        """Now, by the clock that dates everything here."""
        row = connection.execute(self.plane.statement("lake_tables", "clock"), {}).fetchone()
        assert row is not None
        found: datetime = row[0]
        return found

    def find(
        self, connection: Connection, catalogs: Sequence[str], relation: Relation
    ) -> list[CachedTable]:
        """The tables of this name, one a catalog at most."""
        rows = connection.execute(
            self.plane.statement("lake_tables", "find_tables"),
            {
                "project": self.project,
                "catalogs": list(catalogs),
                "namespace": relation.schema,
                "name": relation.name,
            },
        )
        return [_table(row) for row in rows]

    def get(self, connection: Connection, target: Endpoint) -> CachedTable | None:
        """One table; None when it was never seen."""
        found = self.find(connection, [target.connection], target.relation)
        return found[0] if found else None

    def page(
        self,
        connection: Connection,
        catalogs: Sequence[str],
        *,
        after: Endpoint | None = None,
        limit: int | None = None,
    ) -> list[CachedTable]:
        """The tables in order of catalog, namespace and name, beyond one of them."""
        rows = connection.execute(
            self.plane.statement("lake_tables", "list_tables"),
            {
                "project": self.project,
                "catalogs": list(catalogs),
                "after_catalog": None if after is None else after.connection,
                "after_namespace": None if after is None else after.relation.schema,
                "after_name": None if after is None else after.relation.name,
                "limit": limit,
            },
        )
        return [_table(row) for row in rows]

    def names(self, connection: Connection, catalogs: Sequence[str]) -> list[Endpoint]:
        """What the tables are called."""
        rows = connection.execute(
            self.plane.statement("lake_tables", "list_names"),
            {"project": self.project, "catalogs": list(catalogs)},
        )
        return [Endpoint(row[0], Relation(*row[1:])) for row in rows]

    def see(
        self, connection: Connection, catalog: str, relations: Sequence[Relation]
    ) -> dict[Relation, str | None]:
        """Note that these are there; of each the metadata that was read well, None for none."""
        rows = connection.execute(
            self.plane.statement("lake_tables", "see_tables"),
            {
                "project": self.project,
                "catalog": catalog,
                "namespaces": [one.schema for one in relations],
                "names": [one.name for one in relations],
            },
        )
        return {Relation(row[0], row[1]): row[2] for row in rows}

    def remove_unseen(self, connection: Connection, catalog: str, listed_at: datetime) -> int:
        """Forget what was not there when the catalog was listed."""
        return connection.execute(
            self.plane.statement("lake_tables", "remove_unseen"),
            {"project": self.project, "catalog": catalog, "listed_at": listed_at},
        ).rowcount

    def put(
        self, connection: Connection, target: Endpoint, facts: TableFacts, read_at: datetime
    ) -> bool:
        """Keep what a table was made of when reading it began; False when newer is known."""
        written = connection.execute(
            self.plane.statement("lake_tables", "put_table"),
            self._key(target)
            | {
                "metadata_location": facts.metadata_location,
                "facts": Jsonb(facts.document()),
                "read_at": read_at,
            },
        )
        return written.rowcount == 1

    def put_orphans(
        self, connection: Connection, catalog: str, found: Mapping[Relation, OrphanEstimate]
    ) -> None:
        """Keep how many files dead attempts have probably left in tables of one catalog."""
        connection.execute(
            self.plane.statement("lake_tables", "put_orphans"),
            {
                "project": self.project,
                "catalog": catalog,
                "namespaces": [one.schema for one in found],
                "names": [one.name for one in found],
                "orphans": [Jsonb(one.document()) for one in found.values()],
            },
        )

    def mark(self, connection: Connection, target: Endpoint, error: str | None) -> None:
        """Note that a table is there, and why it could not be read."""
        connection.execute(
            self.plane.statement("lake_tables", "mark_table"), self._key(target) | {"error": error}
        )

    def remove(self, connection: Connection, target: Endpoint) -> None:
        """Forget one table."""
        connection.execute(self.plane.statement("lake_tables", "remove_table"), self._key(target))

    def catalogs(self, connection: Connection, catalogs: Sequence[str]) -> list[CachedCatalog]:
        """How it stands with each catalog that was ever tried."""
        rows = connection.execute(
            self.plane.statement("lake_catalogs", "list_catalogs"),
            {"project": self.project, "catalogs": list(catalogs)},
        )
        return [CachedCatalog(*row) for row in rows]

    def note_refreshed(self, connection: Connection, catalog: str, listed_at: datetime) -> None:
        """All tables of a catalog were looked at."""
        connection.execute(
            self.plane.statement("lake_catalogs", "note_refreshed"),
            {"project": self.project, "catalog": catalog, "listed_at": listed_at},
        )

    def note_failed(self, connection: Connection, catalog: str, error: str) -> None:
        """A catalog could not be listed; what is known of its tables stays."""
        connection.execute(
            self.plane.statement("lake_catalogs", "note_failed"),
            {"project": self.project, "catalog": catalog, "error": error},
        )

    @contextmanager
    def refreshing(self, connection: Connection, catalog: str) -> Iterator[bool]:
        """Whether this session is the one that refreshes a catalog, for as long as it does.

        Held by the session and not by a transaction, which would hold back vacuum meanwhile.
        """
        key = {"key": f"tidegate:refresh:{self.plane.schema}:{self.project}:{catalog}"}
        row = connection.execute(self.plane.statement("lake_catalogs", "try_lock"), key).fetchone()
        held = bool(row and row[0])
        try:
            yield held
        finally:
            if held and not connection.closed:
                connection.execute(self.plane.statement("lake_catalogs", "unlock"), key)

    def _key(self, target: Endpoint) -> dict[str, Any]:
        return {
            "project": self.project,
            "catalog": target.connection,
            "namespace": target.relation.schema,
            "name": target.relation.name,
        }


def _table(row: Sequence[Any]) -> CachedTable:
    catalog, namespace, name, location, facts, read_at, seen_at, error, orphans, *state = row
    return CachedTable(
        target=Endpoint(catalog, Relation(namespace, name)),
        metadata_location=location,
        facts=_facts(facts),
        read_at=read_at,
        seen_at=seen_at,
        error=error,
        orphans=_orphans(orphans),
        catalog=CachedCatalog(catalog, *state),
    )


def _facts(document: dict[str, Any] | None) -> TableFacts | None:
    """What another version of us wrote may not be readable; the next refresh replaces it."""
    if document is None:
        return None
    try:
        return TableFacts.read(document)
    except (KeyError, TypeError, ValueError):
        return None


def _orphans(document: dict[str, Any] | None) -> OrphanEstimate | None:
    if document is None:
        return None
    since = document.get("since")
    return OrphanEstimate(**document | {"since": since and datetime.fromisoformat(since)})
