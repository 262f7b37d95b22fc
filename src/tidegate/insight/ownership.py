"""What tells a project's pipelines from others': its jobs, and the groups of its tidegate.toml."""

from __future__ import annotations

from tidegate.model.group import TargetTemplate
from tidegate.model.job import SYNC
from tidegate.model.ownership import Ownership, RecordedSync
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import Connection


def read_ownership(context: Context, control: Connection) -> Ownership:
    """Read it from the control database, if there is one; the project's own code is not run."""
    plane, settings = context.plane, context.settings
    rows = []
    if plane.version(control) > 0:
        rows = control.execute(plane.statement("premises", "list_syncs"), {"kind": SYNC}).fetchall()
    groups = {
        name: TargetTemplate.parse(one.target)
        for name, one in settings.sync.items()
        if one.is_group
    }
    return Ownership.of(
        settings.project.name,
        {name: target for name, target in groups.items() if target is not None},
        (RecordedSync(*row) for row in rows),
    )
