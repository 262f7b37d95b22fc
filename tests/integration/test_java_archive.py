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


def test_spark_finds_its_classes_in_an_archive_that_fits_and_notices_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = java_archive.environment(java_archive.FOLDER)["JDK_JAVA_OPTIONS"]
    (tmp_path / "log4j2.properties").touch()
    path = f"{java_archive.class_path()}:{tmp_path}"
    loaded = java(options, "-Xlog:class+load", "-cp", path, SUBMIT, "--version").splitlines()
    assert [line for line in loaded if SUBMIT in line and "shared objects file (top)" in line]

    archive = options.rpartition("=")[2]
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(b"nothing" * 1000)
    expected = java(java_archive.QUICK, "-cp", str(tmp_path), "Missing")
    for unfit in (archive, damaged, tmp_path / "missing.jsa"):
        given = options.replace(archive, str(unfit))
        # No class path fits any of them here.
        assert java(given, "-cp", str(tmp_path), "Missing") == expected

    monkeypatch.setattr(java_archive, "_TRAINING", "raise SystemExit(1)")
    assert java_archive.environment(tmp_path) == {}
