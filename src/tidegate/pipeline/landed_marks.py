"""Soft deletes and truncates: rows that the target holds are marked, all that are not yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psycopg import sql

from tidegate.destinations import merge
from tidegate.destinations.target import fit_shape
from tidegate.model.load import StagedWrite
from tidegate.model.relation import Relation
from tidegate.model.shape import Shape
from tidegate.model.staging import new_write_id
from tidegate.pipeline.landed_batch import LandedBatch
from tidegate.pipeline.landing_table import DELETED_AT
from tidegate.pipeline.stage import staging_place
from tidegate.postgres.connect import Connection
from tidegate.postgres.identifiers import column_list, qualified


def mark_rest(
    batch: LandedBatch, connection: Connection, shape: Shape, staged: list[sql.Identifier]
) -> list[StagedWrite]:
    """Stage the rows of the target that a truncate has deleted, marked so."""
    destination, write_id = batch.destination, new_write_id()
    place = staging_place(batch.context, batch.sync.target, shape, batch.attempt_id)
    connection.execute(place.create_statement(write_id))
    fitted = fit_shape(connection, destination.relation, shape)
    key_shape = replace(
        fitted, columns=tuple(one for one in fitted.columns if one.name in shape.key)
    )
    keys: sql.Composable = sql.SQL("SELECT {} FROM {} t WHERE false").format(
        sql.SQL(", ").join(map(sql.Identifier, shape.key)),
        sql.Identifier(destination.relation.schema, destination.relation.name),
    )
    if staged:
        keys = merge.staged_rows(staged, key_shape, cast=True)
    cursor = connection.execute(
        _mark_statement(
            place.table(write_id),
            shape.staged,
            destination.relation,
            DELETED_AT,
            sql.SQL("{}::timestamptz").format(sql.Literal(batch.landed.emptied_at)),
            keys,
            merge.same_key("t", "s", fitted),
        )
    )
    return [StagedWrite(write_id, cursor.rowcount)] if cursor.rowcount else []


def _mark_statement(
    into: sql.Identifier,
    staged: Sequence[tuple[str, str]],
    target: Relation,
    mark: str,
    moment: sql.Composable,
    staged_keys: sql.Composable,
    same_key: sql.Composable,
) -> sql.Composed:
    """Put every row of the target that is not marked, and does not come anyway, into staging."""
    values = [
        moment if name == mark else sql.SQL("t.{}::{}").format(sql.Identifier(name), sql.SQL(kind))
        for name, kind in staged
    ]
    return sql.SQL(
        "INSERT INTO {into} ({names}) SELECT {values} FROM {target} t WHERE t.{mark} IS NULL"
        " AND NOT EXISTS (SELECT FROM ({keys}) s WHERE {same})"
    ).format(
        into=into,
        names=column_list(name for name, _ in staged),
        values=sql.SQL(", ").join(values),
        target=qualified(target),
        mark=sql.Identifier(mark),
        keys=staged_keys,
        same=same_key,
    )
