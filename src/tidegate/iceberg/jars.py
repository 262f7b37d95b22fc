"""The jars, found or fetched."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidegate.core.errors import SettingsError

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
POSTGRES = "org.postgresql:postgresql:42.7.9"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS = "spark.jars"
_PACKAGES = "spark.jars.packages"
_EXTENSIONS = "spark.sql.extensions"
IVY = "spark.jars.ivy"
# Where Spark keeps what it has fetched.
_IVY = "~/.ivy2.5.2"


@dataclass(frozen=True, slots=True)
class Jars:
    """What Spark is to have on its class path, and what of it is there."""

    packages: tuple[str, ...]
    """those that the user has not given"""
    files: tuple[Path, ...]
    """where they are once Spark has fetched them"""
    missing: tuple[str, ...]
    """files that the user has given and that are not there"""

    @property
    def to_fetch(self) -> tuple[str, ...]:
        """The packages that Spark has not fetched yet; all of them or none, as Spark looks up."""
        return () if all(file.is_file() for file in self.files) else self.packages


def find_jars(conf: Mapping[str, str], postgres: bool) -> Jars:
    """Look for them, without Spark and without a network."""
    given = f"{conf.get(JARS, '')},{conf.get(_PACKAGES, '')}"
    wanted = [ICEBERG] if "iceberg-spark-runtime" not in given else []
    if postgres and "postgresql" not in given:
        wanted.append(POSTGRES)
    named = (urlsplit(one.strip()) for one in conf.get(JARS, "").split(",") if one.strip())
    local = [one.path for one in named if one.scheme in ("", "file")]
    return Jars(
        packages=tuple(wanted),
        files=tuple(fetched(conf, package) for package in wanted),
        missing=tuple(one for one in local if not Path(one).is_file()),
    )


def lake_conf(conf: Mapping[str, str], *, postgres: bool) -> dict[str, str]:
    """The settings with which Spark must start; what the user has given stays.

    Packages that were fetched before are named by their files, so that nothing is looked up.
    """
    found = {_EXTENSIONS: _joined(conf.get(_EXTENSIONS, ""), EXTENSIONS)}
    jars = find_jars(conf, postgres)
    if jars.missing:
        raise SettingsError(
            f'"{JARS}" in [spark.conf] names {", ".join(jars.missing)}, which is not there',
            "correct it, or leave it out where Spark can fetch its packages over the network",
        )
    if jars.to_fetch:
        found[_PACKAGES] = _joined(conf.get(_PACKAGES, ""), *jars.to_fetch)
        # Java does not go by HOME, and would put them where nobody looks for them.
        found[IVY] = str(ivy_folder(conf))
    elif jars.packages:
        found[JARS] = _joined(conf.get(JARS, ""), *map(str, jars.files))
    return found


def fetched(conf: Mapping[str, str], package: str) -> Path:
    """Where Spark puts a package that it has fetched."""
    group, name, version = package.split(":")
    return ivy_folder(conf) / "jars" / f"{group}_{name}-{version}.jar"


def ivy_folder(conf: Mapping[str, str]) -> Path:
    return Path(conf.get(IVY, _IVY)).expanduser()


def _joined(before: str, *more: str) -> str:
    parts = [part for part in before.split(",") if part]
    return ",".join([*parts, *(one for one in more if one not in parts)])


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
