"""Keeps the state of a project in a file: loaded on start, written when the process leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tidegate.control.state import ControlState, Loaded
from tidegate.errors import StateDamaged, TidegateError, UsageError
from tidegate.log import log
from tidegate.model.state_file import StateHeader, check_state
from tidegate.pipeline.context import Context
from tidegate.postgres.connect import first_line, translate
from tidegate.runtime.whole_file import put_aside, write_whole


@dataclass(frozen=True, slots=True)
class Dumped:
    """A state file that was written."""

    path: Path
    header: StateHeader
    rows: dict[str, int]
    size_bytes: int


def check_file(path: Path) -> StateHeader:
    """Whose state a file holds; raises unless it is whole."""
    try:
        with path.open("rb") as file:
            return check_state(file)
    except StateDamaged as error:
        raise StateDamaged(f"{path} {error.message}", error.hint) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or type(error).__name__}",
            "name a file that `tidegate state dump` has written",
        ) from None


def dump_state(context: Context, path: Path, *, aside: bool = False) -> Dumped:
    """Write the state into a file, in place of an older state of the same project.

    Anything else that is there stays: under another name with `aside`, else it is refused.
    """
    context.control_id()
    _make_room(context, path, aside)
    state = ControlState(context.plane, context.settings.project.name)
    try:
        with context.plane.connect() as control:
            size = write_whole(path, state.dump(control))
    except psycopg.Error as error:
        raise translate(error, "dumping the state") from None
    except OSError as error:
        raise _not_written(path, error) from None
    header, rows = _describe(path)
    return Dumped(path, header, rows, size)


def load_state(context: Context, path: Path, *, actor: str, take_over: bool = False) -> Loaded:
    """Load a file into a control plane that knows no job of its project."""
    check_file(path)
    context.control_id()
    state = ControlState(context.plane, context.settings.project.name)
    with path.open("rb") as file, context.plane.connect() as control:

        def lines() -> Iterable[bytes]:
            # The file that was opened, even if another is put in its place meanwhile.
            file.seek(0)
            return file

        try:
            return state.load(control, lines, actor=actor, take_over=take_over)
        except StateDamaged as error:
            raise StateDamaged(f"{path} {error.message}", error.hint) from None


class StateKeeper:
    """The state file of a process: `load_on_start()` before it works, `dump()` when it leaves."""

    def __init__(self, context: Context, path: Path) -> None:
        self.path = path
        self._context = context
        self._loaded = False
        self._dumping = threading.Lock()

    def load_on_start(self) -> Loaded | None:
        """Load the file where the control plane knows no job of this project; None otherwise.

        A file that is not whole raises, and then nothing is written over it later either.
        """
        context = self._context
        context.control_id()
        state = ControlState(context.plane, context.settings.project.name)
        with context.plane.connect() as control:
            empty = state.is_empty(control)
        loaded = None
        if empty and self.path.exists():
            loaded = load_state(context, self.path, actor="scheduler")
            log.info("state_loaded", path=str(self.path), jobs=loaded.jobs)
            if loaded.header.control_id != context.control_id():
                log.warning(
                    "state_of_another_control_plane",
                    control_id=str(loaded.header.control_id),
                    hint="its tables are handed over with: tidegate run NAME --take-over",
                )
        self._loaded = True
        return loaded

    def dump(self) -> Dumped | None:
        """Write the file; what goes wrong is logged, since whoever leaves must leave.

        Any thread may call it, at the same time too. None when nothing was written.
        """
        if not self._loaded:
            return None
        with self._dumping:
            try:
                dumped = dump_state(self._context, self.path, aside=True)
            except (TidegateError, psycopg.Error, OSError) as error:
                reason = error.message if isinstance(error, TidegateError) else first_line(error)
                log.warning("state_not_dumped", path=str(self.path), error=reason)
                return None
        log.info("state_dumped", path=str(self.path), jobs=dumped.rows.get("jobs", 0))
        return dumped


def _make_room(context: Context, path: Path, aside: bool) -> None:
    """Nothing is lost that a dump would be put in the place of."""
    if not path.exists():
        return
    project = context.settings.project.name
    try:
        found = check_file(path)
        if found.project == project:
            return
        refused = UsageError(
            f"{path} holds the state of project {found.project}", "write into another file"
        )
    except UsageError as error:
        refused = error
    if not aside:
        raise UsageError(
            f"{refused.message}; nothing was written over it", "write into another file"
        )
    try:
        kept = put_aside(path, "kept")
    except OSError as error:
        raise _not_written(path, error) from None
    log.warning("state_file_put_aside", path=str(path), kept=str(kept), reason=refused.message)


def _describe(path: Path) -> tuple[StateHeader, dict[str, int]]:
    """What was written, read again from the disk."""
    from tidegate.model.state_file import read_rows

    counts: dict[str, int] = {}
    with path.open("rb") as file:
        header = check_state(file)
        file.seek(0)
        for section, _ in read_rows(file):
            counts[section] = counts.get(section, 0) + 1
    return header, counts


def _not_written(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror or type(error).__name__}",
        "name a file in a folder that can be written to",
    )
