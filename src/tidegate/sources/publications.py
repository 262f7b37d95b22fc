"""The publication of one sync: what of its table is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import SourceError
from tidegate.model.column import RelationKind, Table
from tidegate.postgres.connect import Connection, first_line
from tidegate.postgres.identifiers import qualified

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
