"""What `doctor` finds out about the machine: Java, the workers' Python, Spark, disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tidegate.admin.doctor.finding import FindingLevel
from tidegate.admin.doctor.machine import check_disk, check_java, check_pyspark, check_worker_python
from tidegate.config import SparkSettings
from tidegate.spark import java

LOCAL = SparkSettings()


@pytest.fixture(autouse=True)
def no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the set-up of this machine noted must not decide."""
    monkeypatch.setattr(java, "NOTE", tmp_path / "no note")


def fake_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    fake_program(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    return home


def test_java_must_be_of_a_version_that_spark_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "PLACES", ())
    for version, level in (
        ("1.8.0_402", FindingLevel.FAIL),
        ("11.0.22", FindingLevel.FAIL),
        ("17.0.15", FindingLevel.OK),
        ("21", FindingLevel.OK),
        ("25.0.1", FindingLevel.FAIL),
    ):
        home = fake_java(tmp_path / version, version)
        for environment in (
            {"JAVA_HOME": str(home), "PATH": ""},
            {"PATH": f"{home / 'bin'}:/usr/bin:/bin"},
        ):
            assert check_java(LOCAL, environment).level is level, (version, environment)
    remote = SparkSettings(remote="sc://host")
    assert check_java(remote, {"PATH": ""}).level is FindingLevel.OK, "it is not needed here"


def test_a_broken_java_home_is_named_with_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "jvm" / "good", "17.0.1")
    fake_java(tmp_path / "jvm" / "early", "11.0.1")
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/jvm/*",))
    check = check_java(LOCAL, {"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})
    assert check.level is FindingLevel.FAIL
    assert "which has no bin/java" in check.found
    assert check.fix == f"export JAVA_HOME={good}"


def test_no_java_at_all_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/*",))
    check = check_java(LOCAL, {"PATH": str(tmp_path)})
    assert check.level is FindingLevel.FAIL
    assert "apt-get install" in str(check.fix)


def test_a_java_in_a_usual_place_is_found_when_path_has_none_that_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "jvm" / "good", "21.0.2")
    fake_java(tmp_path / "jvm" / "early", "11.0.1")
    monkeypatch.setattr(java, "PLACES", (f"{tmp_path}/none/*", f"{tmp_path}/jvm/*"))
    paths = [str(tmp_path)]
    for version in ("11.0.1", "25.0.1"):
        paths.append(f"{fake_java(tmp_path / version, version)}/bin:/usr/bin:/bin")
    for path in paths:
        check = check_java(LOCAL, {"PATH": path})
        assert (check.level, check.found) == (FindingLevel.OK, f"Java 21 ({good}/bin/java)"), path
        assert java.choose_java({"PATH": path}).home == good


@pytest.mark.chaos
def test_spark_starts_with_a_java_that_is_not_on_path(tmp_path: Path) -> None:
    """In a process of its own, where PATH has all that a shell script needs but java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            if program.name != "java" and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    real = java.choose_java(os.environ)
    assert real.program is not None
    home = Path(real.program).resolve().parent.parent
    code = (
        "import os, sys; from pathlib import Path;"
        "from tidegate.config import SparkSettings;"
        "from tidegate.spark import java; from tidegate.spark.session import SparkSessions;"
        "java.NOTE = Path('none'); java.PLACES = sys.argv[2:];"
        "spark = SparkSessions(SparkSettings(master='local[1]'), Path(sys.argv[1]));"
        "print(spark.get().range(3).count(), os.environ['JAVA_HOME']); spark.stop()"
    )

    def start(*places: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "state"), *places],
            env={**environment, "PATH": str(programs)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = start(str(home))
    assert done.stdout == f"3 {home}\n", done.stderr
    none = start()
    assert "Spark cannot start: no java on PATH, and JAVA_HOME is not set" in none.stderr
    assert "apt-get install" in none.stderr


def test_the_workers_python_must_run_and_have_what_tasks_import(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    environment = {**os.environ, "PYSPARK_PYTHON": str(bare)}
    environment.pop("PYTHONPATH", None)
    check = check_worker_python(LOCAL, environment)
    assert check.level is FindingLevel.FAIL
    assert "cannot import pyarrow" in check.found
    assert check.fix == "unset PYSPARK_PYTHON, so that this environment's Python is used"
    gone = check_worker_python(LOCAL, {**environment, "PYSPARK_PYTHON": str(tmp_path / "gone")})
    assert (gone.level, "does not run" in gone.found) == (FindingLevel.FAIL, True)
    answer = json.dumps({"version": [3, 8], "missing": {}})
    python = fake_program(tmp_path / "python", f"echo '{answer}'")
    check = check_worker_python(LOCAL, {**os.environ, "PYSPARK_PYTHON": str(python)})
    assert check.level is FindingLevel.FAIL
    assert "Python 3.8; this is" in check.found


def test_our_own_python_passes_and_workers_elsewhere_cannot_be_seen() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    assert check_worker_python(LOCAL, environment).level is FindingLevel.OK
    cluster = SparkSettings(master="spark://host:7077")
    assert check_worker_python(cluster, environment).level is FindingLevel.WARN
    assert check_pyspark().level is FindingLevel.OK


def test_little_room_is_a_warning_even_where_the_folder_is_not_made_yet(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert check_disk("state", folder, low_bytes=1).level is FindingLevel.OK
    assert check_disk("state", folder, low_bytes=1 << 60).level is FindingLevel.WARN
