"""Fetch what Spark needs for Iceberg ahead of time: `python -m tidegate.lake.fetching`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from tidegate.lake.jars import ICEBERG, IVY, POSTGRES, fetched, ivy_folder

_SECONDS = 600


def fetch() -> bool:
    """Let Spark resolve the packages, once; whether they are there now."""
    packages = (ICEBERG, POSTGRES)
    if all(fetched({}, package).is_file() for package in packages):
        return True
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    submit = Path(pyspark.origin).parent / "bin" / "spark-submit"
    with tempfile.TemporaryDirectory() as folder:
        # Packages are resolved before the script is started, which then has nothing to do.
        script = Path(folder) / "nothing.py"
        script.write_text("")
        command = [str(submit), "--master", "local[1]", "--packages", ",".join(packages)]
        command += ["--conf", f"{IVY}={ivy_folder({})}"]
        try:
            subprocess.run(
                [*command, str(script)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
    return all(fetched({}, package).is_file() for package in packages)


if __name__ == "__main__":
    sys.exit(0 if fetch() else 1)
