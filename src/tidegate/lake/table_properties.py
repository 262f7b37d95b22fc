"""What a table's properties say, and what holds where they say nothing."""

from __future__ import annotations

from collections.abc import Mapping

TARGET_SIZE = "write.target-file-size-bytes"
MANIFEST_SIZE = "commit.manifest.target-size-bytes"
GC_ENABLED = "gc.enabled"


def whole_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """A number above 0; what cannot be read as one counts as not given."""
    try:
        found = int(properties.get(name, default))
    except ValueError:
        return default
    return found if found > 0 else default


def may_delete_files(properties: Mapping[str, str]) -> bool:
    """Whether no other table shares files with this one."""
    return properties.get(GC_ENABLED, "true").lower() != "false"
