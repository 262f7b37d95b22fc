"""What a load leaves in the destination, taken together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from acceptance.harness import Scene


@dataclass(frozen=True, slots=True)
class Published:
    """What the destination holds: to be compared before and after."""

    rows: int = 0
    markers: int = 0
    version: int = 0
    watermark: str | None = None

    @property
    def nothing(self) -> bool:
        return self == Published()


def published(scene: Scene) -> Published:
    """Rows, markers and watermark of the target, in one snapshot."""
    with psycopg.connect(scene.destination) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        there = connection.execute(
            "SELECT to_regclass('raw.orders') IS NOT NULL,"
            " to_regclass('tidegate.etl_state') IS NOT NULL"
        ).fetchone()
        assert there is not None

        def one(query: LiteralString) -> tuple[Any, ...]:
            return connection.execute(query).fetchone() or (0, None)

        rows = one("SELECT count(*) FROM raw.orders")[0] if there[0] else 0
        if not there[1]:
            return Published(rows)
        markers = one("SELECT count(*) FROM tidegate.table_updates")[0]
        return Published(
            rows, markers, *one("SELECT version, high_watermark FROM tidegate.etl_state")
        )
