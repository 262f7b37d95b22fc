"""The answer to a COMMIT is lost: what became of it is looked up, and nobody calls it failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from acceptance.proxy import Cut, Proxy, is_commit
from integration.conftest import MakePlace, Place, open_without_spark
from integration.left_behind import filled_place
from integration.orders import CREATE, FILL
from integration.queued import run_here
from tidegate.core.errors import CommitUnknown, ConnectionFailed, LoadError
from tidegate.postgres import connection
from tidegate.postgres.embedded import EmbeddedServer

VERSIONS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
    "mode": "append",
    "key": ["id"],
}


class Line:
    """The line to the warehouse: breaks at the first COMMIT under a fence, then and only then."""

    def __init__(self, port: int, cut: Cut, place: Place) -> None:
        self._fenced = self.stays_down = False
        self.proxy = Proxy(port, cut, "tidegate", commits=self._is_due)
        self._file, self._direct = place.folder / "tidegate.toml", place.target.conninfo
        through = make_conninfo(self._direct, port=self.proxy.port)
        self._through = json.dumps(through)
        text = self._file.read_text()
        self._file.write_text(text.replace(json.dumps(self._direct), self._through))

    def restore(self) -> None:
        """The next project that is opened reaches the warehouse."""
        text = self._file.read_text()
        self._file.write_text(text.replace(self._through, json.dumps(self._direct)))

    def _is_due(self, message: bytes) -> bool:
        self._fenced |= b"tidegate publish " in message
        due = self._fenced and is_commit(message)
        if due and self.stays_down:
            self.proxy.close()
        return due


MakeLine = Callable[[Cut, Place], Line]


@pytest.fixture
def make_line(server: EmbeddedServer) -> Iterator[MakeLine]:
    made: list[Line] = []

    def make(cut: Cut, place: Place) -> Line:
        made.append(Line(server.port, cut, place))
        return made[-1]

    yield make
    for line in made:
        line.proxy.close()


def loaded(make_place: MakePlace) -> Place:
    place = make_place(VERSIONS, databases=2)
    place.source.execute(*CREATE, FILL)
    with open_without_spark(place) as project:
        project.run("orders")
        place.source.execute("UPDATE orders SET updated_at = '2026-02-01'")
        project.run("orders")
    return place


def adopt(place: Place) -> None:
    with place.open() as project:
        project.adopt("orders", from_target_max=True)


def vacuum(place: Place) -> None:
    with place.open() as project:
        project.vacuum("orders")
    assert place.target.value("SELECT count(*) FROM raw.orders_raw") == 10


def remove(place: Place) -> None:
    done = run_here(place, "remove", "orders", "--yes")
    if done.code:
        raise LoadError(done.err)


def refresh(place: Place) -> None:
    with open_without_spark(place) as project:
        assert project.run("orders", full_refresh=True).status == "done"


SCENES = [
    pytest.param(filled_place, adopt, id="adopt"),
    pytest.param(loaded, refresh, id="refresh"),
    pytest.param(loaded, vacuum, id="vacuum", marks=pytest.mark.chaos),
    pytest.param(loaded, remove, id="remove", marks=pytest.mark.chaos),
]


def last_job(place: Place) -> str:
    found: str = place.control.value(
        "SELECT status FROM tidegate_control.jobs ORDER BY submitted_at DESC LIMIT 1"
    )
    return found


@pytest.mark.parametrize(("prepare", "work"), SCENES)
def test_what_is_in_although_nobody_said_so_counts_as_done(
    make_place: MakePlace,
    make_line: MakeLine,
    prepare: Callable[[MakePlace], Place],
    work: Callable[[Place], None],
) -> None:
    place = prepare(make_place)
    line = make_line(Cut.BEFORE_ANSWER, place)
    work(place)
    assert line.proxy.cuts == 1
    assert last_job(place) == "done"


def test_what_is_not_in_has_failed(make_place: MakePlace, make_line: MakeLine) -> None:
    place = filled_place(make_place)
    line = make_line(Cut.BEFORE_COMMIT, place)
    with pytest.raises(ConnectionFailed):
        adopt(place)
    assert last_job(place) == "failed"
    adopt(place)
    assert line.proxy.cuts == 1
    assert last_job(place) == "done"


@pytest.mark.parametrize("cut", Cut)
def test_what_nobody_can_tell_is_not_called_failed(
    make_place: MakePlace, make_line: MakeLine, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_RESOLVE_SECONDS", 0.1)
    place = filled_place(make_place)
    line = make_line(cut, place)
    line.stays_down = True
    with pytest.raises(CommitUnknown):
        adopt(place)
    assert last_job(place) == "running"
    line.restore()
    with place.open() as project, project.context.plane.connect() as control:
        assert project.sweeper("test").run_once(control).reclaimed == 1
    assert last_job(place) == ("done" if cut is Cut.BEFORE_ANSWER else "failed")
