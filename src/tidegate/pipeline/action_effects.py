"""How much there is of what an action works on."""

from __future__ import annotations

from tidegate.destinations.lake import LakeDestination
from tidegate.lake.metadata import open_table
from tidegate.model.maintenance import Action, Amount


def measure(destination: LakeDestination, action: Action) -> tuple[str, Amount]:
    """What is counted, and how much of it there is."""
    table = open_table(destination.catalog, destination.relation)
    assert table is not None
    if action is Action.REWRITE_MANIFESTS:
        found = table.inspect.manifests()
        return "manifests", Amount(found.num_rows, sum(found["length"].to_pylist()))
    if action is Action.REWRITE_POSITION_DELETE_FILES:
        found = table.inspect.delete_files()
        of = "delete files"
    else:
        found = table.inspect.data_files()
        of = "data files"
    return of, Amount(found.num_rows, sum(found["file_size_in_bytes"].to_pylist()))
