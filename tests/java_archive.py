"""Spark's classes, loaded and checked once, for every JVM that the tests start.

Most of what a short-lived Spark costs is reading its classes. Java can keep them in an archive; one
that does not fit is left aside without a word, so that a test never fails for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

# A Java that lives for seconds starts in half the time if it optimizes less.
# The cache of its code is then so small that one which lives for minutes sweeps it all the time.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=192m"
_SILENT = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
# The variables by which it is used.
USED = ("JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")
_PATIENCE_SECONDS = 180
# It lives as long as the Spark it was made of.
FOLDER = Path(sys.prefix).resolve()

# What a load does, in a JVM that is waited for: it writes the archive when it ends.
_TRAINING = """
from pyspark import SparkContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id long").collect()
spark.sql("SELECT id % 2 AS half, count(*) FROM range(9) GROUP BY 1").collect()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def class_path() -> str:
    """All of Spark: what the archive was made with must come first in a JVM's class path."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).resolve().parent / "jars" / "*")


def environment(folder: Path) -> dict[str, str]:
    """What lets a Spark started by pyspark use the archive; it is made there if it is missing."""
    archive = _provide(folder)
    if archive is None:
        return {}
    return {
        "JDK_JAVA_OPTIONS": f"{QUICK} {_SILENT} -XX:SharedArchiveFile={archive}",
        "PYSPARK_SUBMIT_ARGS": _submit(
            *("--driver-class-path", class_path()),
            *("--conf", f"spark.executor.extraClassPath={class_path()}"),
        ),
    }


def _provide(folder: Path) -> Path | None:
    key = _key()
    if key is None or " " in str(folder) or not os.access(folder, os.W_OK):
        return None
    archive = folder / f"spark-{key}.jsa"
    with (folder / "spark-jsa.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return archive if archive.exists() else None


def _key() -> str | None:
    """Changes with Java and with Spark; None where no Java is found."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    jars = Path(class_path()).parent
    # What Java is told otherwise, it repeats here.
    bare = {key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"}
    command = [str(java), "-version"]
    try:
        said = subprocess.run(command, env=bare, capture_output=True, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    parts = (said, os.fsencode(jars), str(jars.stat().st_mtime_ns).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _make(archive: Path) -> None:
    for outdated in archive.parent.glob("spark-*.jsa*"):
        outdated.unlink()
    # One that is not whole must not be found.
    unfinished = archive.with_suffix(".jsa.unfinished")
    confs = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    environment = {
        **os.environ,
        "JDK_JAVA_OPTIONS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": _submit(
            *("--driver-class-path", class_path()),
            *("--driver-java-options", f"-XX:ArchiveClassesAtExit={unfinished}"),
            *(word for conf in confs.items() for word in ("--conf", "=".join(conf))),
        ),
        # A folder with files in it cannot be in the class path of an archive.
        "SPARK_CONF_DIR": str(archive.with_suffix(".nowhere")),
    }
    try:
        subprocess.run(
            [sys.executable, "-c", _TRAINING],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=archive.parent,
            timeout=_PATIENCE_SECONDS,
            check=True,
        )
        unfinished.rename(archive)
    except (OSError, subprocess.SubprocessError):
        unfinished.unlink(missing_ok=True)


def _submit(*arguments: str) -> str:
    return shlex.join([*arguments, "pyspark-shell"])
