"""Recording what is in a lake's table: at once by whoever put it in, later by whoever finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.destinations.publication import Publication
from tidegate.errors import DestinationError
from tidegate.ledger.intents import Intent, Intents
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.markers import Markers
from tidegate.ledger.watermarks import Watermarks
from tidegate.log import log
from tidegate.model.cursor import CursorType
from tidegate.model.lake import LakeTable, Seen
from tidegate.model.relation import Relation
from tidegate.model.watermark import Watermark
from tidegate.postgres.connect import Connection


def move_of(publication: Publication) -> dict[str, Any] | None:
    """How a publish moves the watermark, for whoever has to record it in its place."""
    before = publication.watermark
    if before is None:
        return None
    after = before.after(publication.batch, publication.rows, publication.update_id)
    kind = publication.cursor_type
    return {
        "pipeline": before.pipeline,
        "generation": before.generation,
        "version": before.version,
        "value": after.value,
        "position": None if after.position is None else list(after.position),
        "rows": publication.rows,
        "cursor_type": None if kind is None else kind.value,
        "moved_by": publication.moved_by,
        "kind": publication.batch.kind.value,
        "declaration": None if publication.declaration is None else dict(publication.declaration),
    }


def record(
    connection: Connection, ledger: Ledger, relation: Relation, publication: Publication
) -> None:
    """Marker and watermark of a load that is in, in the caller's transaction under the fence."""
    fence = publication.fence
    _record(
        connection,
        ledger,
        relation,
        Intent(
            publication.update_id, fence.attempt_id, fence.token, None, None, move_of(publication)
        ),
    )


@dataclass(frozen=True, slots=True)
class Healing:
    """Settles the intents of one table."""

    ledger: Ledger
    relation: Relation

    def settle(
        self, connection: Connection, table: LakeTable | None, keep: str | None = None
    ) -> None:
        """Record what turned out to be in; give up the rest, except that of the attempt `keep`."""
        intents = Intents(self.ledger)
        name = str(self.relation)
        for intent in intents.of_table(connection, name):
            seen = Seen.UNPUBLISHED
            if table is not None:
                seen = table.see(intent.update_id, intent.base)
            if seen is Seen.PUBLISHED:
                _record(connection, self.ledger, self.relation, intent)
                log.info("intent_healed", table=name, update_id=intent.update_id)
            elif intent.attempt_id == keep or intent.abandoned:
                continue
            elif seen is Seen.UNKNOWN:
                _refuse_unknown(self.relation, intent)
            else:
                intents.abandon(connection, name, intent)

    def record(self, connection: Connection, intent: Intent) -> None:
        """Take somebody's word that a load is in, where the table itself cannot tell any more."""
        _record(connection, self.ledger, self.relation, intent)


def _record(connection: Connection, ledger: Ledger, relation: Relation, intent: Intent) -> None:
    name = str(relation)
    if Markers(ledger).touch(connection, intent.update_id, relation) and intent.move is not None:
        _move(connection, ledger, name, intent, intent.move)
    Intents(ledger).settle(connection, name, intent.update_id)


def _move(
    connection: Connection, ledger: Ledger, table: str, intent: Intent, move: Mapping[str, Any]
) -> None:
    """Only from where the load started: a person may have moved the watermark since."""
    watermarks = Watermarks(ledger)
    now = watermarks.get(connection, move["pipeline"], table)
    if (now.generation, now.version) != (move["generation"], move["version"]):
        log.warning("watermark_not_moved", pipeline=move["pipeline"], update_id=intent.update_id)
        return
    position = None if move["position"] is None else tuple(move["position"])
    after = Watermark(
        now.pipeline,
        table,
        move["value"],
        generation=now.generation,
        version=now.version + 1,
        rows_synced=now.rows_synced + move["rows"],
        position=position,
        update_id=intent.update_id,
    )
    watermarks.move(
        connection,
        now,
        after,
        cursor_type=None if move["cursor_type"] is None else CursorType(move["cursor_type"]),
        fence=intent.fence,
        attempt_id=intent.attempt_id,
        moved_by=move["moved_by"],
        reason=f"load {move['kind']}",
        declaration=move["declaration"],
    )


def _refuse_unknown(relation: Relation, intent: Intent) -> None:
    raise DestinationError(
        f"whether {intent.update_id} is in {relation} cannot be told: the snapshots that would "
        "say so have expired",
        f"look whether its rows are there; if they are: tidegate marker touch LAKE:{relation} "
        f"{intent.update_id}; if not: tidegate marker forget LAKE:{relation} {intent.update_id}",
    )
