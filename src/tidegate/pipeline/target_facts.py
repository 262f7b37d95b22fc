"""What a table is made of, by the file size that the project wants of it."""

from __future__ import annotations

from tidegate.lake.table_facts import read_facts
from tidegate.model.maintenance import Action, RewriteDataFiles
from tidegate.model.relation import Endpoint
from tidegate.model.table_facts import TableFacts
from tidegate.pipeline.context import Context


def read_target_facts(context: Context, target: Endpoint) -> TableFacts | None:
    """The table as it is now; None when there is none."""
    policy = context.settings.maintenance.policy_of(target.connection, target.relation)
    options = policy.options[Action.REWRITE_DATA_FILES]
    assert isinstance(options, RewriteDataFiles)
    # Else what rewrite_data_files has made by these options would be small for ever.
    return read_facts(
        context.catalog(target.connection), target.relation, options.target_file_bytes
    )
