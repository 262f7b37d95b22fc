"""The archive of Spark's classes that makes these tests quick: used where it fits, else unseen."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import java_archive

# One that Spark needs to start.
SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def java(options: str, *arguments: str) -> str:
    """All that a Java prints."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    done = subprocess.run(
        [program, *options.split(), *arguments],
        env={key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def options() -> str:
    return java_archive.environment(java_archive.FOLDER)["JDK_JAVA_OPTIONS"]


def test_spark_finds_its_classes_in_the_archive(tmp_path: Path, options: str) -> None:
    (tmp_path / "log4j2.properties").touch()
    path = f"{java_archive.class_path()}:{tmp_path}"
    loaded = java(options, "-Xlog:class+load", "-cp", path, SUBMIT, "--version").splitlines()
    assert [line for line in loaded if SUBMIT in line and "shared objects file (top)" in line]


def test_an_archive_that_does_not_fit_is_left_aside_without_a_word(
    tmp_path: Path, options: str
) -> None:
    archive = options.rpartition("=")[2]
    damaged, missing = tmp_path / "damaged.jsa", tmp_path / "missing.jsa"
    damaged.write_bytes(b"nothing" * 1000)
    expected = java(java_archive.QUICK, "-cp", str(tmp_path), "Missing")
    for unfit in (archive, damaged, missing):
        given = options.replace(archive, str(unfit))
        # No class path fits any of them here.
        assert java(given, "-cp", str(tmp_path), "Missing") == expected


def test_a_machine_without_java_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_archive.environment(tmp_path) == {}


def test_an_archive_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_archive, "_TRAINING", "raise SystemExit(1)")
    assert java_archive.environment(tmp_path) == {}
    assert [file.name for file in tmp_path.iterdir()] == ["spark-jsa.lock"]
