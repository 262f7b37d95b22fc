"""SIGKILL in every mode, in loads and in full refreshes: what is done with rows is done once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.processes import assert_killed
from acceptance.test_named_points import IN_PROCESS, kill_at
from acceptance.test_random_kills import RUN_SECONDS, kill_after
from chaos_seeds import chosen

AFTER_SQL = "UPDATE raw.{} SET status = status WHERE false"
MODES: dict[str, dict[str, object]] = {
    "append": {"mode": "append"},
    "versions": {"mode": "append", "key": ["region", "id"]},
    "delete_insert": {"mode": "delete_insert"},
    "replace": {"mode": "replace", "cursor": None},
    "replace without a key": {"mode": "replace", "cursor": None, "source": "source:public.bare"},
    "merge with checks": {
        "checks": {"small": "total < 50000"},
        "reject_limit": 1,
        "after_sql": AFTER_SQL.format("orders"),
    },
}
REFRESHED = ("merge", "append", "versions", "delete_insert")
FINISHES = "finishes the full refresh that was begun"


@dataclass(slots=True)
class Expected:
    """What one clean run after every change leaves, kept beside the runs that are killed."""

    scene: Scene
    name: str
    sync: str = "orders"
    versions: Counter[oracle.Row] = field(default_factory=Counter)
    _before: Counter[oracle.Row] = field(default_factory=Counter)

    def change(self) -> None:
        """Insert and update; delete as well where the mode follows deletes."""
        self.scene.change()
        if self.name.startswith("replace"):
            delete(self.scene)

    def loaded(self) -> None:
        """A run got to its end: every row that changed since the last one is in."""
        now = Counter(self.source())
        self.versions += now - self._before
        self._before = now

    def source(self) -> list[oracle.Row]:
        return self._read(self.scene.source, "public", "orders")

    def assert_exact(self) -> None:
        self.assert_rows()
        oracle.assert_idle(self.scene.control)
        self.scene.assert_ledger()

    def assert_rows(self) -> None:
        rows, target = self.source(), self.scene.read_target(self.sync)
        if self.name == "append":
            oracle.assert_same_rows(list(self.versions.elements()), target)
        elif self.name == "merge with checks":
            self._assert_checked(rows, target)
        else:
            oracle.assert_same_rows(rows, target)
        if self.name == "versions":
            raw = self._read(self.scene.destination, "raw", f"{self.sync}_raw")
            oracle.assert_same_rows(list(self.versions.elements()), raw)

    def _assert_checked(self, rows: list[oracle.Row], target: list[oracle.Row]) -> None:
        """Rows that pass are as at the source; those that fail are set aside, each once."""
        good = [row for row in rows if float(row[3] or 0) < 50000]
        bad = {(row[0], row[1]) for row in rows if float(row[3] or 0) >= 50000}
        assert bad
        oracle.assert_same_rows(good, [row for row in target if (row[0], row[1]) not in bad])
        query = f"SELECT key ->> 'region', key ->> 'id' FROM raw.{self.sync}_rejected"
        assert Counter(oracle.rows(self.scene.destination, query)) == Counter(bad)

    def _read(self, conninfo: str, schema: str, table: str) -> list[oracle.Row]:
        return oracle.read_rows(conninfo, (schema, table), self.scene.columns, self.scene.key)


def make(make_scene: MakeScene, name: str, databases: int = 2, **options: object) -> Expected:
    scene = make_scene(databases, sync=MODES.get(name, {"mode": name}), **options)
    make_bare(scene)
    return Expected(scene, name)


def make_bare(scene: Scene) -> None:
    """The source without its key."""
    scene.at_source("CREATE VIEW public.bare AS SELECT * FROM public.orders")


def make_all(make_scene: MakeScene, names: tuple[str, ...]) -> list[Expected]:
    """One project with a sync for each of these modes, into tables of their own."""
    syncs = {name: f"as_{name.replace(' ', '_')}" for name in names}
    sections = {
        f"sync.{sync}": {
            "source": "source:public.orders",
            "target": f"warehouse:raw.{sync}",
            "cursor": "updated_at",
            "batch_rows": 40,
            **MODES.get(name, {}),
            "after_sql": AFTER_SQL.format(sync) if name == "merge with checks" else None,
        }
        for name, sync in syncs.items()
    }
    scene = make_scene(2, sections=sections)
    make_bare(scene)
    return [Expected(scene, name, sync) for name, sync in syncs.items()]


def delete(scene: Scene) -> None:
    scene.at_source(
        "DELETE FROM public.orders WHERE (region, id) IN"
        " (SELECT region, id FROM public.orders ORDER BY md5(id::text) LIMIT 2)"
    )


def finish(expected: Expected) -> None:
    oracle.wait_until_left(expected.scene.source)
    expected.scene.run()
    expected.loaded()
    expected.assert_exact()


def finish_all(modes: list[Expected]) -> str:
    """One run of all, and what it said."""
    scene = modes[0].scene
    oracle.wait_until_left(scene.source)
    ended = scene.run(*(one.sync for one in modes))
    for one in modes:
        one.loaded()
        one.assert_rows()
    oracle.assert_idle(scene.control)
    scene.assert_ledger()
    return ended.out


def kill(expected: Expected, point: str, *options: str) -> None:
    killed = expected.scene.start(expected.sync, f"{point}=kill", options)
    assert_killed(killed, f"{point} of {expected.name}")


def test_killed_about_its_commit_in_first_and_later_loads_of_every_mode(
    make_scene: MakeScene,
) -> None:
    modes = make_all(make_scene, tuple(MODES))
    scene = modes[0].scene
    for one in modes:
        kill(one, "publish.moved")
    finish_all(modes)
    scene.change()
    for one in modes:
        kill(one, "publish.committed")
    finish_all(modes)
    scene.wait_until_left()
    assert scene.staged() == []


def test_a_plain_run_finishes_a_killed_full_refresh(make_scene: MakeScene) -> None:
    """Killed before it has a row, while it publishes, and after its commit."""
    modes = make_all(make_scene, REFRESHED)
    scene = modes[0].scene
    finish_all(modes)
    delete(scene)
    for one in modes:
        kill(one, "batch.planned" if one.name == "merge" else "publish.moved", "--full-refresh")
        one.versions = Counter(one.source())
    said = finish_all(modes)
    assert said.count(FINISHES) == len(modes), said
    assert finish_all(modes).count("found nothing new") == len(modes)
    kill(modes[1], "publish.committed", "--full-refresh")
    assert "full refresh" not in finish_all(modes)
    scene.wait_until_left()
    assert scene.staged() == []


def test_a_reader_sees_the_old_table_or_the_new_one_never_none(make_scene: MakeScene) -> None:
    expected = make(make_scene, "replace without a key")
    finish(expected)
    old = len(expected.source())
    expected.change()
    new = len(expected.source())
    process, flag = expected.scene.start_and_hold("publish.applied")
    with psycopg.connect(expected.scene.destination, autocommit=True) as reader:
        reader.execute("SET lock_timeout = '1s'")
        count = "SELECT count(*) FROM raw.orders"
        assert reader.execute(count).fetchone() == (old,)
        process.kill()
        flag.unlink()
        assert reader.execute(count).fetchone() == (old,)
        finish(expected)
        assert reader.execute(count).fetchone() == (new,)


@pytest.mark.chaos
@pytest.mark.parametrize("databases", [1, 2, 3])
@pytest.mark.parametrize("name", MODES)
def test_killed_at_every_point_in_first_and_later_runs(
    make_scene: MakeScene, name: str, databases: int
) -> None:
    expected = make(make_scene, name, databases, batch_rows=15)
    for point in IN_PROCESS:
        kill_at(expected.scene, point)
        finish(expected)
        expected.change()
    finish(expected)
    expected.scene.assert_nothing_staged()


@pytest.mark.chaos
@pytest.mark.parametrize("name", MODES)
def test_killed_at_random_moments(make_scene: MakeScene, name: str) -> None:
    seed = chosen(91)
    expected = make(make_scene, name, batch_rows=15, seed=seed)
    rng = random.Random(seed)
    for _ in range(5):
        kills = 0
        while kills < 4:
            killed = kill_after(expected.scene.start(), rng.uniform(0.02, RUN_SECONDS))
            kills += killed
            if not killed:
                expected.loaded()
                expected.change()
        finish(expected)
        expected.change()
    finish(expected)


@pytest.mark.chaos
@pytest.mark.parametrize("name", REFRESHED)
@pytest.mark.parametrize("point", ["batch.planned", "publish.moved"])
def test_a_full_refresh_of_any_mode_killed_before_its_commit_is_finished(
    make_scene: MakeScene, name: str, point: str
) -> None:
    expected = make(make_scene, name)
    finish(expected)
    delete(expected.scene)
    kill(expected, point, "--full-refresh")
    expected.versions = Counter(expected.source())
    finish(expected)
    expected.scene.assert_nothing_staged()
