"""What every engine must do: the same maintenance on the same table, under the same fence.

As a script it runs on a Spark of its own, since a process has room for one:
python -m acceptance.engine_suite FOLDER
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.processes import until
from integration.conftest import Database, MakePlace, Place
from integration.filled_lakes import RELATION, open_table
from integration.maintained import TARGET, ids, leave_file, location, order_of, small_files_place
from tidegate.core.errors import TidegateError
from tidegate.core.identity import new_attempt_id
from tidegate.core.table_actions import Action
from tidegate.iceberg.engines import Engine, EngineSession
from tidegate.ledger.fences import Fence, Fences
from tidegate.maintenance.procedures import engine_of
from tidegate.maintenance.runner import maintain_here
from tidegate.project import Project

FILES = 6
SECRET = "s3cr3t-t0k3n"
REWRITE = (
    "CALL `lake`.system.rewrite_data_files(table => 'raw.orders',"
    " options => map('rewrite-all', 'true'))"
)
# Its first files appear early, its last ones after a minute or so; each task takes a moment.
LONG = (
    "INSERT INTO `lake`.raw.orders SELECT id, CAST(hash(sha2(CAST(id AS string), 512)) % 9 AS"
    " decimal(10,2)), now() FROM range(0, 40000000, 1, 200)"
)


def engine_place(make_place: MakePlace) -> Place:
    """A project whose table has many small files, and a catalog with something to hide."""
    place = small_files_place(make_place, FILES)
    file = place.folder / "tidegate.toml"
    file.write_text(f'{file.read_text()}\n"some.token" = "{SECRET}"\n')
    return place


@dataclass(frozen=True, slots=True)
class State:
    """A table as another implementation of Iceberg sees it."""

    snapshots: int
    data_files: int
    manifests: int
    rows: tuple[int, ...]


def state(place: Place) -> State:
    table = open_table(place)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return State(
        snapshots=len(table.metadata.snapshots),
        data_files=len(list(table.scan().plan_files())),
        manifests=len(snapshot.manifests(table.io)),
        rows=tuple(ids(place)),
    )


@dataclass(frozen=True, slots=True)
class EngineSuite:
    """A project whose maintenance runs on some engine."""

    project: Project
    place: Place

    @property
    def engine(self) -> Engine:
        return engine_of(self.project.context)

    def check(self) -> None:
        self.check_maintenance()
        self.check_fence()
        self.check_interrupt()
        self.check_refusal()

    def check_maintenance(self) -> None:
        """Every action is done, and has done what pyiceberg sees."""
        rows = tuple(range(FILES))
        before = state(self.place)
        assert before.rows == rows
        assert (before.snapshots, before.data_files, before.manifests) == (FILES, FILES, FILES)
        orphan = leave_file(self.place, "data/orphan.parquet")
        done = maintain_here(self.project.context, TARGET, order_of(), actor="test")
        assert done.status == "done", done.error
        effects = {one.action: one.detail for one in done.actions}
        assert list(effects) == [action.value for action in Action]
        idle = {one for one, detail in effects.items() if detail["status"] != "done"}
        assert idle == {Action.REWRITE_POSITION_DELETE_FILES}, effects
        assert effects[Action.REWRITE_POSITION_DELETE_FILES]["status"] == "skipped"
        assert not orphan.exists()
        rewritten = effects[Action.REWRITE_DATA_FILES]
        assert (rewritten["files_before"], rewritten["files_after"]) == (FILES, 1)
        after = state(self.place)
        assert (after.data_files, after.manifests, after.rows) == (1, 1, rows)

    def check_fence(self) -> None:
        """An attempt that was replaced commits nothing more."""
        attempt_id = self.attempt()
        with self.session(attempt_id) as session:
            list(session.run(REWRITE))
            self.attempt()
            before = self.metadata_location()
            with pytest.raises(Exception, match=f"attempt {attempt_id} was replaced"):
                list(session.run(REWRITE))
        assert self.metadata_location() == before

    def check_interrupt(self) -> None:
        """What runs ends soon, in the engine as well, and nothing of it is committed."""
        before, files = self.metadata_location(), self.files()
        attempt_id = self.attempt()
        interrupted: list[float] = []

        def interrupt() -> None:
            until(lambda: bool(self.files().keys() - files.keys()), "the statement to write")
            interrupted.append(time.monotonic())
            self.engine.interrupt(attempt_id)

        thread = threading.Thread(target=interrupt)
        with self.session(attempt_id) as session:
            thread.start()
            with pytest.raises(Exception, match=r"(?i)interrupted|cancel"):
                list(session.run(LONG))
            ended = time.monotonic()
        thread.join()
        assert ended - interrupted[0] < 2
        until(Still(self), "the engine to end the statement", 30)
        assert self.metadata_location() == before

    def check_refusal(self) -> None:
        """What cannot be done is said in few words."""
        refused = pytest.raises(Exception, match="nosuch")
        with self.session(self.attempt()) as session, refused as raised:
            list(session.run("SELECT nosuch"))
        if isinstance(raised.value, TidegateError):
            assert len(raised.value.message.splitlines()) == 1

    def session(self, attempt_id: str) -> AbstractContextManager[EngineSession]:
        return self.engine.session(self.project.context.catalog("lake"), attempt_id)

    def attempt(self) -> str:
        """A new attempt, which all others have to give way to."""
        context = self.project.context
        fences = Fences(context.ledger("lake"))
        with context.databases.lease("lake") as connection:
            held = fences.current(connection, str(RELATION))
        token = 1 if held is None else held.token + 1
        fence = Fence(str(RELATION), context.control_id(), token, new_attempt_id())
        fences.raise_(fence)
        return fence.attempt_id

    def metadata_location(self) -> str:
        return open_table(self.place).metadata_location

    def files(self) -> dict[Path, int]:
        found = {}
        for file in (location(self.place) / "data").glob("*.parquet"):
            # A task that is ended removes what it has begun.
            with suppress(FileNotFoundError):
                found[file] = file.stat().st_size
        return found


class Still:
    """Whether a table's files have not changed for a while."""

    def __init__(self, suite: EngineSuite) -> None:
        self._suite = suite
        self._seen: dict[Path, int] = {}
        self._since = time.monotonic()

    def __call__(self) -> bool:
        found = self._suite.files()
        if found != self._seen:
            self._seen, self._since = found, time.monotonic()
        return time.monotonic() - self._since > 1


def main(folder: str) -> None:
    project = Project.open(Path(folder))
    control = Database(project.context.databases.conninfo("control"))
    EngineSuite(project, Place(control, control, control, Path(folder))).check()
    print(project.context.spark.get().sparkContext.master)
    project.context.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
