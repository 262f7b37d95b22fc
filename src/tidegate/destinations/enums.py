"""Values of an enum that the target's own type does not know."""

from __future__ import annotations

from psycopg import sql

from tidegate.errors import DriftRefused
from tidegate.model.relation import Relation
from tidegate.model.shape import Shape
from tidegate.postgres.connect import Connection

_SHOWN = 3


def refuse_unknown_values(
    connection: Connection, relation: Relation, rows: sql.Composable, shape: Shape
) -> None:
    """Refuse staged values that the enums of a shape, fitted to the target, do not have.

    They are not added: where a value stands in the order of its type is for a person to say.
    """
    texts = [column for column in shape.columns if column.staged_type == "text"]
    known = _labels(connection, [column.target_type for column in texts])
    for column in texts:
        if column.target_type not in known:
            continue
        unknown = connection.execute(
            sql.SQL(
                "SELECT DISTINCT {name} FROM ({rows}) s WHERE {name} <> ALL ({labels}::text[])"
                " ORDER BY 1 LIMIT {limit}"
            ).format(
                name=sql.Identifier(column.name),
                rows=rows,
                labels=sql.Literal(known[column.target_type]),
                limit=sql.Literal(_SHOWN),
            )
        ).fetchall()
        if unknown:
            add = "; ".join(
                sql.SQL("ALTER TYPE {} ADD VALUE {}")
                .format(sql.SQL(column.target_type), sql.Literal(value))
                .as_string(connection)
                for (value,) in unknown
            )
            raise DriftRefused(
                f"column {column.name} of the rows for {relation} holds values that type "
                f"{column.target_type} does not have: {', '.join(value for (value,) in unknown)}",
                f"nothing was loaded: add them in their place and run again: {add}",
            )


def _labels(connection: Connection, types: list[str]) -> dict[str, list[str]]:
    """The values of each type that is an enum."""
    rows = connection.execute(
        "SELECT name, array_agg(enumlabel::text) FROM unnest(%s::text[]) AS name"
        " JOIN pg_enum ON enumtypid = to_regtype(name) GROUP BY name",
        (list(dict.fromkeys(types)),),
    )
    return dict(rows.fetchall())
