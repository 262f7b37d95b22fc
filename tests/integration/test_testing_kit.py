"""The pytest kit, used as its users do: pytest in a project's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from conftest import MakeDatabase

pytestmark = pytest.mark.usefixtures("warm_workers")

TOML = """
[project]
name = "kit"
control = "{control}"

[connections]
shop = "${{SHOP_URL}}"
warehouse = "{warehouse}"

[spark]
master = "local[2]"

[sync.items]
source = "shop:public.items"
target = "warehouse:raw.items"
cursor = "updated_at"

[sync.inside]
source = "shop:public.items"
target = "shop:copy.items"
cursor = "updated_at"
"""
PIPELINES = """
from pyspark.sql import functions as f
import tidegate as tg


@tg.sync(source="shop:public.items", target="warehouse:raw.lucky", cursor="updated_at")
def lucky(df):
    return df.withColumn("lucky", f.rand())
"""
TESTS = """
from pathlib import Path

import pytest
import tidegate as tg
from tidegate.errors import UsageError
from tidegate.testing import assert_crash_safe, assert_idempotent


@pytest.fixture
def project(tidegate_project):
    with tidegate_project.connect("shop") as shop:
        shop.execute("CREATE TABLE items (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
        shop.execute(
            "INSERT INTO items SELECT n, now() - n * interval '1 hour'"
            " FROM generate_series(1, 12) n"
        )
    return tidegate_project


def test_databases_are_fresh_and_the_folder_is_a_copy(tidegate_project):
    assert tidegate_project.settings.root != Path(__file__).parent
    with tidegate_project.connect("shop") as shop:
        assert shop.execute("SELECT to_regclass('items')").fetchone() == (None,)


def test_sound(project):
    assert_idempotent(project, "items")
    kills = assert_crash_safe(project, "items", points=["stage.done", "publish.moved"])
    assert kills == 2
    assert project.run("items").found_nothing


def test_source_and_target_in_one_database(project):
    assert assert_crash_safe(project, "inside", points=["publish.applied"]) == 1
    with project.connect("shop") as shop:
        assert shop.execute("SELECT to_regclass('copy.items')").fetchone() == (None,)


def test_not_deterministic(project):
    with pytest.raises(AssertionError, match="loaded anew.*12 different, in lucky"):
        assert_idempotent(project, "lucky")
    with pytest.raises(AssertionError, match="not deterministic.* in lucky"):
        assert_crash_safe(project, "lucky", points=["publish.applied"])


def test_nothing_to_prove(project):
    with project.connect("shop") as shop:
        shop.execute("TRUNCATE items")
    with pytest.raises(AssertionError, match="fill its source first"):
        assert_idempotent(project, "items")


def test_a_real_project_is_refused():
    with tg.open(Path(__file__).parent) as real:
        for check in (assert_idempotent, assert_crash_safe):
            with pytest.raises(UsageError, match="databases are real"):
                check(real, "items")


def test_an_unknown_point_is_refused(project):
    with pytest.raises(UsageError, match="there is no point stage.dome"):
        assert_crash_safe(project, "items", points=["stage.dome"])
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With the plugin named, and no other: it need not be installed for that."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEGATE_", "PYTEST"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment.pop("SHOP_URL", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tidegate.testing.plugin", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def folder(tmp_path: Path, make_database: MakeDatabase) -> Path:
    """A project with real databases, which no test may touch, and tests of its user's."""
    made = {name: make_database(name) for name in ("control", "warehouse")}
    (tmp_path / "tidegate.toml").write_text(TOML.format(**made))
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    (tmp_path / "test_kit.py").write_text(TESTS)
    return tmp_path


def test_the_fixtures_and_assertions_do_what_they_say_and_leave_real_databases_alone(
    folder: Path, make_database: MakeDatabase
) -> None:
    done = run_pytest(folder, "-q")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout
    for line in (folder / "tidegate.toml").read_text().splitlines():
        name, _, value = line.partition(" = ")
        if name in ("control", "warehouse"):
            with psycopg.connect(value.strip('"')) as connection:
                schemas = connection.execute(
                    "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^(raw|tidegate)'"
                ).fetchone()
            assert schemas == (0,)


def test_a_suite_elsewhere_names_its_project_in_its_settings(folder: Path, tmp_path: Path) -> None:
    suite = tmp_path / "elsewhere"
    suite.mkdir()
    (suite / "pytest.ini").write_text("[pytest]\ntidegate_project = ..\n")
    (suite / "test_name.py").write_text(
        "def test_name(tidegate_project):\n    assert tidegate_project.name == 'kit'\n"
    )
    done = run_pytest(suite, "-q")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_shows_nothing_where_it_is_not_used(folder: Path) -> None:
    (folder / "test_kit.py").write_text(
        "def test_one():\n    import sys\n    assert 'pyspark' not in sys.modules\n"
    )
    done = run_pytest(folder, "-q", "--strict-config", "--strict-markers", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
