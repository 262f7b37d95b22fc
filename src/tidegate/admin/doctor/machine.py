"""What Tidegate needs of this machine: Java, Spark, the workers' Python, room on the disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tidegate.admin.doctor.finding import Finding, fail, ok, warn
from tidegate.config import SparkSettings
from tidegate.spark.java import choose_java

LOW_DISK_BYTES = 2 * 1024**3
WORKER_MODULES = ("pyarrow", "pandas", "psycopg", "adbc_driver_postgresql", "pyiceberg", "tidegate")
_TIMEOUT_SECONDS = 60
_PROBE = """
import importlib, json, sys
missing = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing[name] = "%s: %s" % (type(error).__name__, error)
print(json.dumps({"version": list(sys.version_info[:2]), "missing": missing}))
"""


def check_machine(
    spark: SparkSettings, folders: Mapping[str, Path], environment: Mapping[str, str] | None = None
) -> list[Finding]:
    """Look at everything outside the databases, without starting Spark."""
    environ = os.environ if environment is None else environment
    return [
        check_java(spark, environ),
        check_pyspark(),
        check_worker_python(spark, environ),
        *(check_disk(name, folder) for name, folder in folders.items()),
    ]


def check_java(spark: SparkSettings, environ: Mapping[str, str]) -> Finding:
    """The Java that Spark would start with."""
    if spark.remote is not None:
        return ok("java", "not needed here: Spark runs at spark.remote")
    java = choose_java(environ)
    if java.complaint is not None:
        return fail("java", java.complaint, java.fix or "")
    return ok("java", f"Java {java.major} ({java.program})")


def check_pyspark() -> Finding:
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return fail(
            "pyspark",
            "not installed in this environment",
            f"{sys.executable} -m pip install pyspark",
        )
    if not found.startswith("4.1."):
        fix = f"{sys.executable} -m pip install 'pyspark>=4.1,<4.2'"
        return warn("pyspark", f"{found}; Tidegate is tested with 4.1", fix)
    return ok("pyspark", found)


def check_worker_python(spark: SparkSettings, environ: Mapping[str, str]) -> Finding:
    """The Python in which Spark's tasks run must be like ours and have what the tasks import."""
    name = "worker python"
    given = environ.get("PYSPARK_PYTHON")
    python = given or sys.executable
    if spark.remote is not None or not (spark.master or "local").startswith("local"):
        return warn(
            name,
            "the tasks run on other machines, whose Python cannot be seen from here",
            f"install there: Python {sys.version_info[0]}.{sys.version_info[1]}, tidegate and what "
            "it requires",
        )
    fix = "unset PYSPARK_PYTHON, so that this environment's Python is used"
    shown = f"PYSPARK_PYTHON is {given}" if given else python
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *WORKER_MODULES],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            cwd="/",  # what lies in the folder we were called in is not seen by the tasks either
            env=dict(environ),
            check=True,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return fail(name, f"{shown}, which does not run", fix)
    ours, theirs = list(sys.version_info[:2]), answer["version"]
    if theirs != ours:
        pair = f"Python {theirs[0]}.{theirs[1]}; this is {ours[0]}.{ours[1]}"
        return fail(name, f"{shown}: {pair}, and Spark wants them alike", fix)
    if answer["missing"]:
        what = "; ".join(f"{module} ({why})" for module, why in answer["missing"].items())
        repair = fix if given else f"{python} -m pip install --upgrade tidegate"
        return fail(name, f"{shown}: cannot import {what}", repair)
    return ok(name, f"Python {theirs[0]}.{theirs[1]} ({python})")


def check_disk(name: str, folder: Path, low_bytes: int = LOW_DISK_BYTES) -> Finding:
    """Room for staging, logs and the embedded database."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / 1024**3:.1f} GB free in {folder}"
    if free < low_bytes:
        return warn(f"disk: {name}", text, "free some space, or put the folder on another disk")
    return ok(f"disk: {name}", text)
