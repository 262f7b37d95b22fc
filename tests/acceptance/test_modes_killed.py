"""SIGKILL in every mode: whatever it does with its rows, it does it once."""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import dataclass, field

import psycopg
import pytest

from acceptance import oracle
from acceptance.conftest import MakeScene
from acceptance.harness import Scene
from acceptance.test_named_points import IN_PROCESS, kill_at
from acceptance.test_random_kills import RUN_SECONDS, kill_after
from chaos_seeds import chosen

# Where rows, marker and watermark are nearly or just together.
POINTS = ("publish.moved", "publish.committed")

MODES: dict[str, dict[str, object]] = {
    "append": {"mode": "append"},
    "versions": {"mode": "append", "key": ["region", "id"]},
    "delete_insert": {"mode": "delete_insert"},
    "replace": {"mode": "replace", "cursor": None},
    "replace without a key": {"mode": "replace", "cursor": None, "source": "source:public.bare"},
    "merge with checks": {
        "checks": {"small": "total < 50000"},
        "reject_limit": 1,
        "after_sql": "UPDATE raw.orders SET status = status WHERE false",
    },
}


@dataclass(slots=True)
class Expected:
    """What one clean run after every change leaves, kept beside the runs that are killed."""

    scene: Scene
    name: str
    versions: Counter[oracle.Row] = field(default_factory=Counter)
    _before: Counter[oracle.Row] = field(default_factory=Counter)

    def change(self) -> None:
        """Insert and update; delete as well where the mode follows deletes."""
        self.scene.change()
        if self.name.startswith("replace"):
            with psycopg.connect(self.scene.source, autocommit=True) as connection:
                connection.execute(
                    "DELETE FROM public.orders WHERE (region, id) IN"
                    " (SELECT region, id FROM public.orders ORDER BY md5(id::text) LIMIT 2)"
                )

    def loaded(self) -> None:
        """A run got to its end: every row that changed since the last one is in."""
        now = Counter(self.source())
        self.versions += now - self._before
        self._before = now

    def source(self) -> list[oracle.Row]:
        return self._read(self.scene.source, "public", "orders")

    def assert_exact(self) -> None:
        rows, target = self.source(), self.scene.read_target("orders")
        if self.name == "append":
            oracle.assert_same_rows(list(self.versions.elements()), target)
        elif self.name == "merge with checks":
            self._assert_checked(rows, target)
        else:
            oracle.assert_same_rows(rows, target)
        if self.name == "versions":
            raw = self._read(self.scene.destination, "raw", "orders_raw")
            oracle.assert_same_rows(list(self.versions.elements()), raw)
        oracle.assert_idle(self.scene.control)
        self.scene.assert_ledger()

    def _assert_checked(self, rows: list[oracle.Row], target: list[oracle.Row]) -> None:
        """Rows that pass are as at the source; those that fail are set aside, each once."""
        good = [row for row in rows if float(row[3] or 0) < 50000]
        bad = {(row[0], row[1]) for row in rows if float(row[3] or 0) >= 50000}
        assert bad
        oracle.assert_same_rows(good, [row for row in target if (row[0], row[1]) not in bad])
        with psycopg.connect(self.scene.destination) as connection:
            rejected = connection.execute(
                "SELECT key ->> 'region', key ->> 'id' FROM raw.orders_rejected"
            ).fetchall()
        assert Counter(rejected) == Counter(bad)

    def _read(self, conninfo: str, schema: str, table: str) -> list[oracle.Row]:
        return oracle.read_rows(conninfo, (schema, table), self.scene.columns, self.scene.key)


def make(make_scene: MakeScene, name: str, databases: int = 2, **options: object) -> Expected:
    scene = make_scene(databases, sync=MODES.get(name, {"mode": name}), **options)
    with psycopg.connect(scene.source, autocommit=True) as connection:
        connection.execute("CREATE VIEW public.bare AS SELECT * FROM public.orders")
    return Expected(scene, name)


def finish(expected: Expected) -> None:
    oracle.wait_until_left(expected.scene.source)
    expected.scene.run()
    expected.loaded()
    expected.assert_exact()


@pytest.mark.parametrize("name", MODES)
def test_killed_about_its_commit_and_run_again(make_scene: MakeScene, name: str) -> None:
    expected = make(make_scene, name)
    for point in POINTS:
        kill_at(expected.scene, point)
    finish(expected)
    expected.change()
    kill_at(expected.scene, "publish.applied")
    finish(expected)
    expected.scene.assert_nothing_staged()


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
        assert process.kill().code == -signal.SIGKILL
        flag.unlink()
        assert reader.execute(count).fetchone() == (old,)
        finish(expected)
        assert reader.execute(count).fetchone() == (new,)
