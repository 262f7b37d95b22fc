"""State files as processes keep them: whole whatever happens, and never lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.processes import Process, WarmProcess
from integration.commands import DONE, USAGE
from integration.conftest import MakePlace, Place
from integration.job_store import control_session, request, shared
from integration.queued import OfProject, run_here
from tidegate.admin.state import StateKeeper, check_file, dump_state, load_state
from tidegate.core.errors import StateDamaged, UsageError
from tidegate.jobs.job import JobRequest
from tidegate.project import Project

# What a scheduler does with its state file, and nothing else.
KEEPING = """
import signal, sys, threading
from pathlib import Path
from tidegate.project import Project
from tidegate.admin.state import StateKeeper

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


class Kept(OfProject):
    """A project whose state is kept."""

    def request(self, name: str = "orders", **options: object) -> JobRequest:
        return request(name=name, **options)

    def queue(self, *names: str) -> None:
        for name in names:
            self.submit(name)

    def queued(self) -> list[str]:
        rows = self.execute("SELECT name FROM jobs JOIN job_queue USING (job_id) ORDER BY job_id")
        return [row[0] for row in rows]

    def forget(self) -> None:
        """The jobs of the control database are lost."""
        self.clean()


@contextmanager
def open_kept(place: Place) -> Iterator[Kept]:
    with place.open() as project, control_session(project.context.plane) as parts:
        project.context.control_id()
        yield Kept(place=place, project=project, **parts)


opened, shop = shared(lambda places: open_kept(places()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "state.json"


@contextmanager
def keeping(shop: Kept, path: Path, said: str, **environment: str) -> Iterator[Process]:
    """A process that keeps a state file, once it has said so."""
    script = shop.place.folder / "keeping.py"
    script.write_text(KEEPING)
    command = [str(script), str(shop.place.folder), str(path)]
    process = WarmProcess(command, shop.place.folder / "kept", environment)
    try:
        process.wait_for(lambda: said in process.out, said)
        yield process
    finally:
        process.kill_all()


def test_a_signal_leaves_a_whole_file_that_the_next_start_loads(shop: Kept, path: Path) -> None:
    shop.queue("orders", "stock")
    for number, said in ((signal.SIGINT, "None"), (signal.SIGTERM, "2"), (signal.SIGQUIT, "2")):
        with keeping(shop, path, f"keeps {said}") as process:
            assert shop.queued() == ["orders", "stock"]
            process.send(number)
            assert process.wait(30).code == 0
        assert check_file(path).project == "shop"
        shop.forget()


def test_a_process_killed_while_it_writes_leaves_the_file_of_before(shop: Kept, path: Path) -> None:
    shop.queue("orders")
    context = shop.project.context
    dump_state(context, path)
    before = path.read_bytes()
    shop.queue("stock")
    with keeping(shop, path, "keeps None", TIDEGATE_FAILPOINT="state.written=kill") as killed:
        killed.send(signal.SIGTERM)
        assert killed.wait(30).code == -signal.SIGKILL
    assert path.read_bytes() == before
    (left,) = set(path.parent.iterdir()) - {path}
    os.utime(left, (0, 0))
    dump_state(context, path)
    assert list(path.parent.iterdir()) == [path]
    assert b"stock" in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0, "only its owner reads it"


def test_a_process_killed_while_it_loads_leaves_an_empty_control_plane_and_the_file(
    shop: Kept, path: Path
) -> None:
    shop.queue("orders", "stock")
    dump_state(shop.project.context, path)
    before = path.read_bytes()
    shop.forget()
    with keeping(shop, path, "", TIDEGATE_FAILPOINT="state.loaded=kill") as killed:
        assert killed.wait(30).code == -signal.SIGKILL
    assert shop.queued() == []
    with keeping(shop, path, "keeps 2"):
        assert shop.queued() == ["orders", "stock"]
    assert path.read_bytes() == before


def test_a_damaged_file_stops_the_start_and_is_kept(shop: Kept, path: Path) -> None:
    shop.queue("orders")
    dump_state(shop.project.context, path)
    whole = path.read_bytes()
    shop.forget()
    for damaged in (whole.replace(b"orders", b"0rders"), b"{}"):
        path.write_bytes(damaged)
        keeper = StateKeeper(shop.project.context, path)
        with pytest.raises(StateDamaged):
            keeper.load_on_start()
        # Whoever could not load does not write either.
        assert keeper.dump() is None
        assert path.read_bytes() == damaged
        assert shop.queued() == []


def test_a_damaged_file_that_was_not_needed_is_put_aside_when_the_process_leaves(
    shop: Kept, path: Path
) -> None:
    shop.queue("orders")
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    keeper = StateKeeper(shop.project.context, path)
    assert keeper.load_on_start() is None
    assert keeper.dump() is not None
    assert path.with_name("state.json.kept-1").read_bytes() == b"damaged"
    assert check_file(path).project == "shop"
    path.write_bytes(b"damaged again")
    assert keeper.dump() is not None
    assert path.with_name("state.json.kept-2").read_bytes() == b"damaged again"
    assert path.with_name("state.json.kept-1").read_bytes() == b"damaged"


def test_a_control_plane_with_jobs_is_not_loaded_into_on_start(shop: Kept, path: Path) -> None:
    shop.queue("orders")
    dump_state(shop.project.context, path)
    shop.queue("stock")
    assert StateKeeper(shop.project.context, path).load_on_start() is None
    assert shop.queued() == ["orders", "stock"]


def test_several_may_dump_at_the_same_time(shop: Kept, path: Path) -> None:
    shop.queue(*(f"job{number}" for number in range(20)))
    found: list[int] = []

    def work(project: Project) -> None:
        for _ in range(3):
            found.append(dump_state(project.context, path).rows["jobs"])

    threads = [threading.Thread(target=work, args=(shop.place.open(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [20] * 12
    assert check_file(path).project == "shop"
    assert list(path.parent.iterdir()) == [path]


def test_a_dump_and_a_load_by_command(shop: Kept, make_place: MakePlace, path: Path) -> None:
    shop.queue("orders", "stock")
    done = shop.run("state", "dump", str(path))
    assert (done.code, "2 unfinished jobs" in done.out) == (DONE, True)
    with open_kept(make_place()) as elsewhere:
        done = elsewhere.run("state", "load", str(path), "--json")
        assert (done.code, done.document["rows"]["jobs"]) == (DONE, 2)
        assert done.document["same_control_plane"] is False
        assert elsewhere.queued() == ["orders", "stock"]
        again = elsewhere.run("state", "load", str(path))
        assert again.code == USAGE
        assert "has jobs in this control database" in again.err
        told = elsewhere.run("state", "load", str(path.with_name("none.json")))
        assert (told.code, "none.json cannot be read" in told.err) == (USAGE, True)
    assert shop.run("state", "dump").code == DONE
    assert check_file(shop.place.folder / ".tidegate" / "state.json").project == "shop"


def test_a_new_control_database_goes_on_as_the_one_that_is_gone(
    make_place: MakePlace, path: Path
) -> None:
    place = make_place()
    with open_kept(place) as shop:
        shop.queue("orders")
        identity = shop.project.context.control_id()
        keeper = StateKeeper(shop.project.context, path)
        keeper.load_on_start()
        assert keeper.dump() is not None
        before = path.read_bytes()
        place.control.execute("DROP SCHEMA tidegate_control CASCADE")
        # A database that is gone leaves the file of before.
        assert keeper.dump() is None
        assert path.read_bytes() == before
    done = run_here(place, "state", "load", str(path), "--take-over")
    assert (done.code, "another control plane" in done.out) == (DONE, False)
    with place.open() as project:
        assert project.context.control_id() == identity


def test_a_command_writes_over_nothing_but_a_state_of_its_own_project(
    shop: Kept, places: MakePlace, path: Path
) -> None:
    path.parent.mkdir()
    path.write_text("my letters")
    done = shop.run("state", "dump", str(path), "--json")
    assert (done.code, "nothing was written over it" in done.document["message"]) == (USAGE, True)
    assert path.read_text() == "my letters"
    bank, own = places(beside=shop.place, name="bank"), path.with_name("bank.json")
    assert run_here(bank, "state", "dump", str(own)).code == DONE
    before = own.read_bytes()
    assert shop.run("state", "dump", str(own)).code == USAGE
    assert own.read_bytes() == before
    assert run_here(bank, "state", "dump", str(own)).code == DONE
    nowhere = path / "state.json"
    with pytest.raises(UsageError, match="cannot be written"):
        dump_state(shop.project.context, nowhere)
    with pytest.raises(UsageError, match="cannot be read"):
        load_state(shop.project.context, nowhere, actor="test")
