"""What Spark needs on its class path to work with Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
POSTGRES = "org.postgresql:postgresql:42.7.9"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_JARS = "spark.jars"
_PACKAGES = "spark.jars.packages"
_EXTENSIONS = "spark.sql.extensions"
# Where Spark keeps what it has fetched.
_IVY = "~/.ivy2.5.2"


def lake_conf(conf: Mapping[str, str], *, postgres: bool) -> dict[str, str]:
    """The settings with which Spark must start; what the user has given stays.

    Packages that were fetched before are named by their files, so that nothing is looked up.
    """
    found = {_EXTENSIONS: _joined(conf.get(_EXTENSIONS, ""), EXTENSIONS)}
    given = f"{conf.get(_JARS, '')},{conf.get(_PACKAGES, '')}"
    wanted = [ICEBERG] if "iceberg-spark-runtime" not in given else []
    if postgres and "postgresql" not in given:
        wanted.append(POSTGRES)
    files = [fetched(conf, package) for package in wanted]
    if wanted and all(file.is_file() for file in files):
        found[_JARS] = _joined(conf.get(_JARS, ""), *map(str, files))
    elif wanted:
        found[_PACKAGES] = _joined(conf.get(_PACKAGES, ""), *wanted)
    return found


def fetched(conf: Mapping[str, str], package: str) -> Path:
    """Where Spark puts a package that it has fetched."""
    group, name, version = package.split(":")
    folder = Path(conf.get("spark.jars.ivy", _IVY)).expanduser()
    return folder / "jars" / f"{group}_{name}-{version}.jar"


def _joined(before: str, *more: str) -> str:
    parts = [part for part in before.split(",") if part]
    return ",".join([*parts, *(one for one in more if one not in parts)])
