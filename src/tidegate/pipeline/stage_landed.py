"""Landed changes on their way into the usual staging: folded to one row a key, values filled in."""

from __future__ import annotations

from tidegate.destinations.destination import Destination
from tidegate.model.batch import Batch
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.pipeline.landing import Landed
from tidegate.pipeline.load import Prepare
from tidegate.pipeline.stage import Staged
from tidegate.postgres.connect import Connection
from tidegate.sources.postgres import PostgresSource

DELETED_AT = "deleted_at"
"""the column that soft deletes add to the target"""


def stage_landed(
    landed: Landed,
    destination: Destination,
    *,
    context: Context,
    sync: Sync,
    source: PostgresSource,
    connection: Connection,
    batch: Batch,
    attempt_id: str,
    prepare: Prepare,
    soft: bool = False,
) -> Staged:
    """Stage what was landed for a batch of kind CHANGES, or FULL after a hard truncate.

    `connection` is a session of the source, which names the types of the landed columns. The
    landing table becomes the staging table of a Postgres target; of a lake it is read by Spark.
    Call it once for a landing: rows are folded in place.
    """
    raise NotImplementedError
