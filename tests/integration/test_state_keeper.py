"""State files as processes keep them: whole whatever happens, and never lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from integration.commands import DONE, USAGE, tidegate
from integration.conftest import Database, MakePlace, Place
from integration.job_store import request
from tidegate.control.jobs import Jobs
from tidegate.errors import StateDamaged, UsageError
from tidegate.runtime.state_keeper import StateKeeper, check_file, dump_state, load_state

# What a scheduler does with its state file, and nothing else.
KEEPING = """
import signal, sys, threading
from pathlib import Path
from tidegate.project import Project
from tidegate.runtime.state_keeper import StateKeeper

with Project.open(sys.argv[1]) as project:
    keeper = StateKeeper(project.context, Path(sys.argv[2]))
    loaded = keeper.load_on_start()
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda *_: told.set())
    print(f"keeps {loaded.jobs if loaded else None}", flush=True)
    try:
        while not told.wait(0.05):
            pass
    finally:
        keeper.dump()
"""


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(databases=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "state.json"


def queue(place: Place, *names: str) -> None:
    context = place.open().context
    context.control_id()
    with context.plane.connect() as control:
        for name in names:
            assert Jobs(context.plane).submit(control, request(name=name), "test").job_id


def queued(database: Database) -> list[str]:
    return [
        row[0]
        for row in database.execute(
            "SELECT name FROM tidegate_control.jobs JOIN tidegate_control.job_queue USING (job_id)"
            " ORDER BY job_id"
        )
    ]


def keeping(place: Place, path: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KEEPING, str(place.folder), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def forget_everything(place: Place) -> None:
    """The control database is lost."""
    place.control.execute("DROP SCHEMA tidegate_control CASCADE")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_leaves_a_whole_file_that_the_next_start_loads(
    place: Place, path: Path, number: signal.Signals
) -> None:
    queue(place, "orders", "stock")
    first = keeping(place, path)
    assert said(first) == "keeps None"
    first.send_signal(number)
    assert first.wait(30) == 0
    assert check_file(path).project == "shop"
    forget_everything(place)
    second = keeping(place, path)
    assert said(second) == "keeps 2"
    second.send_signal(number)
    assert second.wait(30) == 0
    assert queued(place.control) == ["orders", "stock"]


def test_a_process_killed_while_it_writes_leaves_the_file_of_before(
    place: Place, path: Path
) -> None:
    queue(place, "orders")
    dump_state(place.open().context, path)
    before = path.read_bytes()
    queue(place, "stock")
    killed = keeping(place, path, TIDEGATE_FAILPOINT="state.written=kill")
    assert said(killed) == "keeps None"
    killed.send_signal(signal.SIGTERM)
    assert killed.wait(30) == -signal.SIGKILL
    assert path.read_bytes() == before
    (left,) = set(path.parent.iterdir()) - {path}
    os.utime(left, (0, 0))
    dump_state(place.open().context, path)
    assert list(path.parent.iterdir()) == [path]
    assert b"stock" in path.read_bytes()


def test_a_process_killed_while_it_loads_leaves_an_empty_control_plane_and_the_file(
    place: Place, path: Path
) -> None:
    queue(place, "orders", "stock")
    dump_state(place.open().context, path)
    before = path.read_bytes()
    forget_everything(place)
    killed = keeping(place, path, TIDEGATE_FAILPOINT="state.loaded=kill")
    assert killed.wait(30) == -signal.SIGKILL
    assert queued(place.control) == []
    again = keeping(place, path)
    assert said(again) == "keeps 2"
    assert queued(place.control) == ["orders", "stock"]
    again.kill()
    again.wait()
    assert path.read_bytes() == before


def test_a_damaged_file_stops_the_start_and_is_kept(place: Place, path: Path) -> None:
    queue(place, "orders")
    dump_state(place.open().context, path)
    path.write_bytes(damaged := path.read_bytes().replace(b"orders", b"0rders"))
    forget_everything(place)
    process = keeping(place, path)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "StateDamaged" in told
    assert path.read_bytes() == damaged
    assert queued(place.control) == []


def test_whoever_could_not_load_does_not_write_either(place: Place, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"{}")
    keeper = StateKeeper(place.open().context, path)
    with pytest.raises(StateDamaged, match=r"state\.json is no state file"):
        keeper.load_on_start()
    assert keeper.dump() is None
    assert path.read_bytes() == b"{}"


def test_a_damaged_file_that_was_not_needed_is_put_aside_when_the_process_leaves(
    place: Place, path: Path
) -> None:
    queue(place, "orders")
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    keeper = StateKeeper(place.open().context, path)
    assert keeper.load_on_start() is None
    assert keeper.dump() is not None
    assert path.with_name("state.json.kept-1").read_bytes() == b"damaged"
    assert check_file(path).project == "shop"
    path.write_bytes(b"damaged again")
    assert keeper.dump() is not None
    assert path.with_name("state.json.kept-2").read_bytes() == b"damaged again"
    assert path.with_name("state.json.kept-1").read_bytes() == b"damaged"


def test_a_control_plane_with_jobs_is_not_loaded_into_on_start(place: Place, path: Path) -> None:
    queue(place, "orders")
    context = place.open().context
    dump_state(context, path)
    queue(place, "stock")
    assert StateKeeper(context, path).load_on_start() is None
    assert queued(place.control) == ["orders", "stock"]


def test_a_database_that_is_gone_leaves_the_file_of_before(place: Place, path: Path) -> None:
    queue(place, "orders")
    keeper = StateKeeper(place.open().context, path)
    keeper.load_on_start()
    assert keeper.dump() is not None
    before = path.read_bytes()
    forget_everything(place)
    assert keeper.dump() is None
    assert path.read_bytes() == before


def test_several_may_dump_at_the_same_time(place: Place, path: Path) -> None:
    queue(place, *(f"job{number}" for number in range(50)))
    contexts = [place.open().context for _ in range(4)]
    found: list[int] = []

    def work(context: object) -> None:
        for _ in range(3):
            found.append(dump_state(context, path).rows["jobs"])  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(one,)) for one in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 12
    assert check_file(path).project == "shop"
    assert list(path.parent.iterdir()) == [path]


def test_only_its_owner_reads_a_state_file(place: Place, path: Path) -> None:
    dump_state(place.open().context, path)
    assert path.stat().st_mode & 0o077 == 0


def test_a_dump_and_a_load_by_command(place: Place, make_place: MakePlace, path: Path) -> None:
    queue(place, "orders", "stock")
    done = tidegate(place.folder, "state", "dump", str(path))
    assert (done.code, "2 unfinished jobs" in done.out) == (DONE, True)
    elsewhere = make_place(databases=3)
    done = tidegate(elsewhere.folder, "state", "load", str(path), "--json")
    assert (done.code, done.document["rows"]["jobs"]) == (DONE, 2)
    assert done.document["same_control_plane"] is False
    assert queued(elsewhere.control) == ["orders", "stock"]
    again = tidegate(elsewhere.folder, "state", "load", str(path))
    assert again.code == USAGE
    assert "has jobs in this control database" in again.err
    told = tidegate(elsewhere.folder, "state", "load", str(path.with_name("none.json")))
    assert (told.code, "none.json cannot be read" in told.err) == (USAGE, True)


def test_a_new_control_database_goes_on_as_the_one_that_is_gone(place: Place, path: Path) -> None:
    queue(place, "orders")
    identity = place.open().context.control_id()
    assert tidegate(place.folder, "state", "dump", str(path)).code == DONE
    forget_everything(place)
    done = tidegate(place.folder, "state", "load", str(path), "--take-over")
    assert (done.code, "another control plane" in done.out) == (DONE, False)
    assert place.open().context.control_id() == identity


def test_a_command_writes_over_nothing_but_a_state_of_its_own_project(
    place: Place, make_place: MakePlace, path: Path
) -> None:
    path.parent.mkdir()
    path.write_text("my letters")
    done = tidegate(place.folder, "state", "dump", str(path), "--json")
    assert (done.code, "nothing was written over it" in done.document["message"]) == (USAGE, True)
    assert path.read_text() == "my letters"
    another = make_place(databases=3, name="bank")
    own = path.with_name("bank.json")
    assert tidegate(another.folder, "state", "dump", str(own)).code == DONE
    before = own.read_bytes()
    assert tidegate(place.folder, "state", "dump", str(own)).code == USAGE
    assert own.read_bytes() == before
    assert tidegate(another.folder, "state", "dump", str(own)).code == DONE


def test_a_dump_without_a_name_lies_in_the_state_folder(place: Place) -> None:
    assert tidegate(place.folder, "state", "dump").code == DONE
    assert check_file(place.folder / ".tidegate" / "state.json").project == "shop"


def test_a_folder_that_cannot_be_written_to_is_named(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        dump_state(place.open().context, tmp_path / "file" / "state.json")
    with pytest.raises(UsageError, match="cannot be read"):
        load_state(place.open().context, tmp_path / "file" / "state.json", actor="test")
