"""One materialized view: how it stands, and the ways in which it is filled."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from datetime import datetime

from psycopg import errors as pg
from psycopg import sql

from tidegate.errors import DestinationError
from tidegate.model.event_model import View
from tidegate.model.relation import Relation
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import OwnSQL, column_list, qualified, statement

_PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SUFFIX = "__next"


@dataclass(frozen=True, slots=True)
class Standing:
    """A view as it was found."""

    view: View
    kind: str | None
    populated: bool | None
    has_key: bool
    definition: str | None
    changes: int | None
    refreshed_at: datetime | None
    failed_at: datetime | None
    rows: int | None

    @property
    def exists(self) -> bool:
        return self.kind is not None

    @property
    def is_current(self) -> bool:
        """It shows what the model says, as far as it is filled."""
        return (
            self.kind == "m"
            and bool(self.populated)
            and self.definition == definition_of(self.view)
        )


def definition_of(view: View) -> str:
    """What tells two definitions of a view apart."""
    text = json.dumps([view.query, list(view.unique)])
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_foreign(standing: Standing) -> None:
    """Refuse a relation that stands under the view's name and is not ours."""
    name = standing.view.name
    if standing.exists and (standing.kind != "m" or standing.definition is None):
        raise DestinationError(
            f"{name} is there already and was not made by Tidegate",
            "drop or rename it, or give the view another name in the model",
        )


def create_view(connection: Connection, view: View, name: Relation | None = None) -> None:
    """Make a view and fill it; nobody sees it before it is full and has its key."""
    made = name or view.name
    connection.execute(
        sql.SQL("CREATE MATERIALIZED VIEW {} AS\n{}\n").format(
            qualified(made), OwnSQL(view.query.strip().rstrip(";"))
        )
    )
    create_key(connection, view, made)


def create_key(connection: Connection, view: View, name: Relation | None = None) -> None:
    """The unique index by which a refresh finds what has changed."""
    made = name or view.name
    connection.execute(
        sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(qualified(made), column_list(view.unique))
    )


def refresh_view(connection: Connection, view: View, *, beside_readers: bool) -> None:
    how = sql.SQL("CONCURRENTLY " if beside_readers else "")
    connection.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}{}").format(how, qualified(view.name)))


def fill_next(connection: Connection, view: View) -> Relation:
    """The new definition, made and filled under another name, while the old one is read."""
    made = next_name(view.name)
    with connection.transaction():
        # What is left of one who was killed.
        connection.execute(sql.SQL("DROP MATERIALIZED VIEW IF EXISTS {}").format(qualified(made)))
        create_view(connection, view, made)
    return made


def swap(connection: Connection, view: View, made: Relation) -> None:
    """Put the new view in the place of the old; the caller's transaction holds both.

    Readers are kept waiting for half a second at most; whoever reads for longer is not cut off.
    """
    row = connection.execute(
        statement("events/views", "read_rights"),
        {"schema": view.name.schema, "name": view.name.name},
    ).fetchone()
    assert row is not None
    comment, rights = row
    for pause in (*_PAUSES_SECONDS, None):
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '500ms'")
                connection.execute(
                    sql.SQL("DROP MATERIALIZED VIEW {}").format(qualified(view.name))
                )
            break
        except pg.LockNotAvailable:
            if pause is None:
                raise
            time.sleep(pause)
    name = qualified(view.name)
    connection.execute(
        sql.SQL("ALTER MATERIALIZED VIEW {} RENAME TO {}").format(
            qualified(made), sql.Identifier(view.name.name)
        )
    )
    for right in rights:
        before, _, after = right.partition("%s")
        connection.execute(sql.SQL("GRANT {}{}{}").format(sql.SQL(before), name, sql.SQL(after)))
    if comment is not None:
        connection.execute(
            sql.SQL("COMMENT ON MATERIALIZED VIEW {} IS {}").format(name, sql.Literal(comment))
        )


def next_name(name: Relation) -> Relation:
    kept = name.name.encode()[: 63 - len(_SUFFIX)].decode(errors="ignore")
    return Relation(name.schema, kept + _SUFFIX)
