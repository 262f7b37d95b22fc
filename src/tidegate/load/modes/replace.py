"""replace: the whole table each time; by key only what changed is written."""

from __future__ import annotations

from tidegate.load.modes.load_mode import LoadMode, Refusal, Request
from tidegate.load.modes.merge import upsert_statement, upsert_steps

REPLACE = LoadMode(
    # Its batches are whole, so an upsert also removes what they do not hold.
    postgres=upsert_steps,
    iceberg=upsert_statement,
    loads_whole=True,
    needs_unique_index=True,
    refusals=(
        Refusal(
            Request.DELETES,
            "{carried}, and mode replace removes whatever it does not hold",
            'load the changes in mode = "merge" or "delete_insert", or the whole without deletes',
        ),
    ),
)
