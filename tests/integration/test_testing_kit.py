"""The pytest kit, used as its users do: pytest in a project's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from conftest import MakeDatabase
from integration.test_prove import without_spark
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.spark.session import SparkSessions
from tidegate.testing import assert_idempotent
from tidegate.testing.sandbox import FreshDatabases, SandboxProject

TOML = """
[project]
name = "kit"
control = "{control}"

[connections]
shop = "${{SHOP_URL}}"
warehouse = "{warehouse}"

[spark]
master = "{master}"

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
import tidegate as tg


@tg.sync(source="shop:public.items", target="warehouse:raw.lucky", cursor="updated_at")
def lucky(df):
    from pyspark.sql import functions as f

    return df.withColumn("lucky", f.rand())
"""
TESTS = """
from pathlib import Path

import pytest
import tidegate as tg
from tidegate.core.errors import UsageError
from tidegate.testing import assert_crash_safe, assert_idempotent

REAL = Path("{real}")


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
    assert tidegate_project.name == "kit"
    assert tidegate_project.settings.root != REAL
    with tidegate_project.connect("shop") as shop:
        assert shop.execute("SELECT to_regclass('items')").fetchone() == (None,)


def test_sound(project):
    assert_idempotent(project, "items")
    assert assert_crash_safe(project, "items", points=["publish.moved"]) == 1
    assert project.run("items").found_nothing


def test_what_cannot_be_proved_is_refused(project):
    with pytest.raises(UsageError, match="there is no point stage.dome"):
        assert_crash_safe(project, "items", points=["stage.dome"])
    with project.connect("shop") as shop:
        shop.execute("TRUNCATE items")
    with pytest.raises(AssertionError, match="fill its source first"):
        assert_idempotent(project, "items")
    with tg.open(REAL) as real:
        for check in (assert_idempotent, assert_crash_safe):
            with pytest.raises(UsageError, match="databases are real"):
                check(real, "items")
"""
WITH_SPARK = """


def test_source_and_target_in_one_database(project):
    points = ["stage.done", "publish.applied"]
    assert assert_crash_safe(project, "inside", points=points) == 2
    with project.connect("shop") as shop:
        assert shop.execute("SELECT to_regclass('copy.items')").fetchone() == (None,)


def test_not_deterministic(project):
    with pytest.raises(AssertionError, match="loaded anew.*12 different, in lucky"):
        assert_idempotent(project, "lucky")
    with pytest.raises(AssertionError, match="not deterministic.* in lucky"):
        assert_crash_safe(project, "lucky", points=["publish.applied"])
"""
# What the plugin must not do where nobody uses it.
UNUSED = """
def test_unused():
    import sys
    assert "pyspark" not in sys.modules
"""


def run_pytest(folder: Path, *arguments: str, **variables: str) -> str:
    """What it said. With the plugin named, and no other: it need not be installed for that."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEGATE_", "PYTEST"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment.pop("SHOP_URL", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tidegate.testing.plugin", *arguments],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Suite:
    """A project with real databases, which no test may touch, and tests of its user's."""

    def __init__(self, folder: Path, make_database: MakeDatabase) -> None:
        self.folder = folder / "project"
        self._real = {name: make_database(name) for name in ("control", "warehouse")}

    def write(self, tests: str, master: str, where: str = "tests") -> Path:
        """The folder of the tests."""
        self.folder.mkdir()
        folder = self.folder / where
        folder.mkdir()
        (self.folder / "tidegate.toml").write_text(TOML.format(**self._real, master=master))
        (self.folder / "pipelines.py").write_text(PIPELINES)
        (folder / "test_kit.py").write_text(tests.replace("{real}", str(self.folder)))
        return folder

    def is_untouched(self) -> bool:
        query = "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^(raw|tidegate)'"
        found = []
        for conninfo in self._real.values():
            with psycopg.connect(conninfo) as connection:
                found.append(connection.execute(query).fetchone())
        return found == [(0,), (0,)]


@pytest.fixture
def suite(tmp_path: Path, make_database: MakeDatabase) -> Suite:
    return Suite(tmp_path, make_database)


def test_the_fixtures_and_assertions_do_what_they_say_and_leave_real_databases_alone(
    suite: Suite, tmp_path: Path
) -> None:
    tests = suite.write(TESTS, master="yarn")
    assert "3 passed" in run_pytest(tests, **without_spark(tmp_path / "no_spark"))
    assert suite.is_untouched()


@pytest.mark.chaos
@pytest.mark.usefixtures("warm_workers")
def test_a_suite_elsewhere_names_its_project_and_finds_what_is_not_deterministic(
    suite: Suite,
) -> None:
    tests = suite.write(TESTS + WITH_SPARK, master="local[2]", where="../elsewhere")
    (tests / "pytest.ini").write_text("[pytest]\ntidegate_project = ../project\n")
    assert "5 passed" in run_pytest(tests)
    assert suite.is_untouched()


def test_the_plugin_shows_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "test_unused.py").write_text(UNUSED)
    run_pytest(tmp_path, "--strict-config", "--strict-markers", "-W", "error")


def test_a_transformation_that_is_not_deterministic_is_found_by_repeating_it(
    suite: Suite, warm_spark: SparkSessions, server: EmbeddedServer, tmp_path: Path
) -> None:
    suite.write("", master="local[2]")
    databases = FreshDatabases(server)
    try:
        with SandboxProject.copy(suite.folder, tmp_path / "copy", databases) as project:
            project.share_spark(warm_spark)
            with project.connect("shop") as shop:
                shop.execute(
                    "CREATE TABLE items (id int PRIMARY KEY, updated_at timestamptz NOT NULL)"
                )
                shop.execute("INSERT INTO items SELECT n, now() FROM generate_series(1, 12) n")
            with pytest.raises(AssertionError, match=r"loaded anew.*12 different, in lucky"):
                assert_idempotent(project, "lucky")
    finally:
        databases.close()
