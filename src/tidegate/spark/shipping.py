"""The user's Python modules on their way to Spark's workers, wherever those run."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tidegate.errors import TransformError
from tidegate.spark.outcome import spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT_PACKAGES = 20
_CODE = "TIDEGATE_CODE"
_packages: WeakKeyDictionary[ModuleType, Path] = WeakKeyDictionary()
"""what lay beside each pipelines file when its functions were first sent"""
_first_code: dict[str, str] = {}
"""what each Spark application of this process was sent first"""


@dataclass(frozen=True, slots=True)
class UserCode:
    """The pipelines file and the modules beside it."""

    file: Path
    state: Path

    @property
    def module_name(self) -> str:
        """The name under which the pipelines file runs: one of its own for every project."""
        stem = re.sub(r"\W", "_", self.file.stem)
        place = hashlib.sha256(str(self.file.resolve()).encode()).hexdigest()[:8]
        return f"tidegate_project_{stem}_{place}"

    def modules(self) -> Iterator[tuple[str, Path]]:
        """(name in the package, file): Python sources only, so no settings and no secrets."""
        folder = self.file.parent
        for path in sorted(folder.iterdir()):
            if path.suffix == ".py" and path.is_file():
                yield path.name, path
            elif self._is_package(path):
                for file in sorted(path.rglob("*.py")):
                    if not any(part.startswith(".") for part in file.relative_to(path).parts):
                        yield file.relative_to(folder).as_posix(), file
        yield f"{self.module_name}.py", self.file

    def pack(self) -> Path:
        """A zip of the modules, named by its content, so that a changed one is another file."""
        sources = {name: _read(file) for name, file in self.modules()}
        digest = hashlib.sha256()
        for name, source in sources.items():
            digest.update(f"{name}\0{len(source)}\0".encode() + source)
        package = self.state / "spark" / "code" / f"tidegate_{digest.hexdigest()[:16]}.zip"
        try:
            _write(package, sources)
        except OSError as error:
            raise TransformError(
                f"{package.parent} cannot be written, where modules are packed for Spark's "
                f"workers: {error.strerror}",
                "make it writable, or set project.state to another folder",
            ) from None
        return package

    def _is_package(self, path: Path) -> bool:
        if not path.is_dir() or not path.name.isidentifier() or path == self.state:
            return False
        return (path / "__init__.py").exists() or _was_imported(path)


def ship(session: SparkSession, code: UserCode, sent: set[str], *, remote: bool) -> None:
    """Send the modules to the session's workers; what the pipelines file defines goes by value."""
    from pyspark import cloudpickle

    module = sys.modules.get(code.module_name)
    if module is None:
        return
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    package = _packages.get(module)
    if package is None:
        package = _packages[module] = code.pack()
    if package.name not in sent:
        try:
            session.addArtifacts(str(package), pyfile=True)
        except Exception as error:
            raise TransformError(
                f"the modules beside {code.file.name} cannot be sent to Spark's workers: "
                f"{spark_reason(error)}",
                "see that Spark answers, then run again; nothing was published",
            ) from error
        sent.add(package.name)
    if not remote:
        _put_first(session, package.name)


def _put_first(session: SparkSession, name: str) -> None:
    """Let workers import these modules, when another project of this process sent others.

    Workers keep what they imported. Those with another environment are other processes.
    """
    context = session.sparkContext
    includes = context._python_includes
    assert includes is not None
    includes[:] = [*(other for other in includes if other != name), name]
    if _first_code.setdefault(context.applicationId, name) == name:
        context.environment.pop(_CODE, None)
    else:
        context.environment[_CODE] = name


def _was_imported(folder: Path) -> bool:
    """Whether something in a folder without __init__.py was imported as a package all the same."""
    module = sys.modules.get(folder.name)
    return str(folder) in list(getattr(module, "__path__", ()))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TransformError(
            f"{file} cannot be sent to Spark's workers: {error.strerror}",
            "make it readable, or move it out of the project's folder",
        ) from None


def _write(package: Path, sources: dict[str, bytes]) -> None:
    package.parent.mkdir(parents=True, exist_ok=True)
    if package.exists():
        package.touch()
        return
    unfinished = package.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sources.items():
            archive.writestr(zipfile.ZipInfo(name), source)
    unfinished.replace(package)
    _prune(package.parent)


def _prune(folder: Path) -> None:
    """Drop the packages of old versions; a running driver may still hand out recent ones."""
    packages = sorted(folder.glob("*.zip"), key=lambda path: path.stat().st_mtime)
    for package in packages[:-_KEPT_PACKAGES]:
        package.unlink(missing_ok=True)
