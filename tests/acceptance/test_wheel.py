"""The built wheel works on its own: no file of the repository is needed to init and run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel installed, and only the dependencies shared."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, REPOSITORY],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("tidegate-*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", purelib, wheel],
        check=True,
    )
    # Added folders are searched after the environment's own, and .pth files in them are not
    # followed, so the editable install of this repository stays out of sight.
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_in_a_clean_environment_can_init_and_run(
    clean_python: Path, tmp_path: Path, make_database: Callable[..., str]
) -> None:
    source = make_database("shop")
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, total numeric,"
            " updated_at timestamptz NOT NULL DEFAULT now())"
        )
        connection.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 100) g")

    clean = {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}

    def tidegate(*arguments: str) -> str:
        done = subprocess.run(
            [clean_python, "-m", "tidegate.cli.main", *arguments],
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = subprocess.run(
        [clean_python, "-c", "import tidegate; print(tidegate.__file__)"],
        cwd=tmp_path,
        env=clean,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert not Path(where).is_relative_to(REPOSITORY)
    assert "views/mv_revenue_summary.sql" in tidegate("init", "star", "--template", "events")
    tidegate("init", "--source", source)
    try:
        assert "100 rows" in tidegate("run", "--all")
        assert "100 rows equal" in tidegate("verify", "--all")
    finally:
        tidegate("db", "stop")
