"""The load modes, one a file: what each does in a target, in plan and in verify.

A new mode is a new file here, its line in MODES, and its name in `config.sync.Mode`.
"""

from tidegate.config.sync import Mode
from tidegate.load.modes.append import APPEND
from tidegate.load.modes.delete_insert import DELETE_INSERT
from tidegate.load.modes.load_mode import LoadMode, Request, TableForm
from tidegate.load.modes.merge import MERGE
from tidegate.load.modes.replace import REPLACE

MODES: dict[Mode, LoadMode] = {
    Mode.MERGE: MERGE,
    Mode.APPEND: APPEND,
    Mode.DELETE_INSERT: DELETE_INSERT,
    Mode.REPLACE: REPLACE,
}

__all__ = ["MODES", "LoadMode", "Request", "TableForm"]
