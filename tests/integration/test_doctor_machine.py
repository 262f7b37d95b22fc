"""What `doctor` finds out about the machine: Java, the workers' Python, Spark, disk."""

from __future__ import annotations

import json
import os
import venv
from pathlib import Path

import pytest

from tidegate.insight import doctor_machine
from tidegate.insight.doctor_machine import (
    check_disk,
    check_java,
    check_pyspark,
    check_worker_python,
)
from tidegate.model.check import Level
from tidegate.settings import SparkSettings

LOCAL = SparkSettings()


def fake_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    fake_program(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    return home


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("1.8.0_402", Level.FAIL),
        ("11.0.22", Level.FAIL),
        ("17.0.15", Level.OK),
        ("21", Level.OK),
        ("25.0.1", Level.FAIL),
    ],
)
def test_java_must_be_of_a_version_that_spark_runs_on(
    tmp_path: Path, version: str, level: Level
) -> None:
    home = fake_java(tmp_path / "jdk", version)
    for environment in (
        {"JAVA_HOME": str(home), "PATH": ""},
        {"PATH": f"{home / 'bin'}:/usr/bin:/bin"},
    ):
        assert check_java(LOCAL, environment).level is level


def test_a_broken_java_home_is_named_with_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "jvm" / "good", "17.0.1")
    fake_java(tmp_path / "jvm" / "early", "11.0.1")
    monkeypatch.setattr(doctor_machine, "_JVM_FOLDER", tmp_path / "jvm")
    check = check_java(LOCAL, {"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})
    assert check.level is Level.FAIL
    assert "which has no bin/java" in check.found
    assert check.fix == f"export JAVA_HOME={good}"


def test_no_java_at_all_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "_JVM_FOLDER", tmp_path)
    check = check_java(LOCAL, {"PATH": str(tmp_path)})
    assert check.level is Level.FAIL
    assert "apt-get install" in str(check.fix)


def test_java_is_not_needed_for_a_remote_spark() -> None:
    assert check_java(SparkSettings(remote="sc://host"), {"PATH": ""}).level is Level.OK


def test_the_workers_python_must_run_and_have_what_tasks_import(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    environment = {**os.environ, "PYSPARK_PYTHON": str(bare)}
    environment.pop("PYTHONPATH", None)
    check = check_worker_python(LOCAL, environment)
    assert check.level is Level.FAIL
    assert "cannot import pyarrow" in check.found
    assert check.fix == "unset PYSPARK_PYTHON, so that this environment's Python is used"
    gone = check_worker_python(LOCAL, {**environment, "PYSPARK_PYTHON": str(tmp_path / "gone")})
    assert (gone.level, "does not run" in gone.found) == (Level.FAIL, True)


def test_the_workers_python_must_be_of_our_version(tmp_path: Path) -> None:
    answer = json.dumps({"version": [3, 8], "missing": {}})
    python = fake_program(tmp_path / "python", f"echo '{answer}'")
    check = check_worker_python(LOCAL, {**os.environ, "PYSPARK_PYTHON": str(python)})
    assert check.level is Level.FAIL
    assert "Python 3.8; this is" in check.found


def test_our_own_python_passes_and_workers_elsewhere_cannot_be_seen() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    assert check_worker_python(LOCAL, environment).level is Level.OK
    cluster = SparkSettings(master="spark://host:7077")
    assert check_worker_python(cluster, environment).level is Level.WARN
    assert check_pyspark().level is Level.OK


def test_little_room_is_a_warning_even_where_the_folder_is_not_made_yet(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert check_disk("state", folder, low_bytes=1).level is Level.OK
    assert check_disk("state", folder, low_bytes=1 << 60).level is Level.WARN
