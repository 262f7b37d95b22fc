"""The user's modules: imported here, shipped to workers."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import sys
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tidegate.config import Settings
from tidegate.core.errors import SettingsError, TransformError
from tidegate.spark.task_outcome import spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CODE = "TIDEGATE_CODE"
_PREFIX = "tidegate_"
_packages: WeakKeyDictionary[ModuleType, Package] = WeakKeyDictionary()
"""what lay beside each pipelines file when its functions were first sent"""
_first_code: dict[str, str] = {}
"""what each Spark application of this process was sent first"""


@dataclass(frozen=True, slots=True)
class Package:
    """A zip of modules."""

    content: bytes

    @property
    def name(self) -> str:
        """Another one when a module was changed, since Spark keeps what it has by name."""
        return f"{_PREFIX}{hashlib.sha256(self.content).hexdigest()[:16]}.zip"

    def write(self, folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        file = folder / self.name
        file.write_bytes(self.content)
        return str(file)


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

    def pack(self) -> Package:
        """A zip of the modules as they are now."""
        sources = {name: _read(file) for name, file in self.modules()}
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, source in sources.items():
                archive.writestr(zipfile.ZipInfo(name), source)
        return Package(content.getvalue())

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
            _send(session, package, remote=remote)
        except Exception as error:
            raise TransformError(
                f"the modules beside {code.file.name} cannot be sent to Spark's workers: "
                f"{spark_reason(error)}",
                "see that Spark answers and has room for temporary files, then run again; "
                "nothing was published",
            ) from error
        sent.add(package.name)
    if not remote:
        _put_first(session, package.name)


def _send(session: SparkSession, package: Package, *, remote: bool) -> None:
    from pyspark import SparkFiles

    if remote:
        with TemporaryDirectory(prefix="tidegate-") as folder:
            session.addArtifacts(package.write(Path(folder)), pyfile=True)
    else:
        # Executors fetch it whenever they start, so it must last as long as the driver: Spark
        # removes its own temporary folder at the end, and not before.
        folder_of_spark = Path(SparkFiles.getRootDirectory()).parent
        session.addArtifacts(package.write(folder_of_spark / "tidegate"), pyfile=True)


def _put_first(session: SparkSession, name: str) -> None:
    """Let workers import these modules, when another project of this process sent others.

    Workers keep what they imported. Those with another environment are other processes.
    """
    context = session.sparkContext
    includes = context._python_includes
    assert includes is not None
    # Spark hands them on as a set, so an order would not hold: only these may be there.
    includes[:] = [*(other for other in includes if not other.startswith(_PREFIX)), name]
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


_CONNECT = "SPARK_CONNECT_MODE_ENABLED"
_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
_imported: set[str] = set()
"""modules that lay beside a pipelines file, of whichever project"""


def user_code(settings: Settings) -> UserCode:
    return UserCode(settings.pipelines_file, settings.state_directory)


def import_file(code: UserCode, *, connect: bool) -> None:
    """Run the pipelines file as a module of a name of its own."""
    name, file = code.module_name, code.file
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    _forget_modules()
    before = set(sys.modules)
    # Looked up there by dataclasses, and by pickle.
    sys.modules[name] = module
    try:
        with importable(code), _functions_of(connect):
            specification.loader.exec_module(module)
    except Exception as error:
        raise _unreadable(file, error) from error
    finally:
        folder = file.parent.resolve()
        _imported.update(new for new in set(sys.modules) - before if _lies_in(new, folder))


def _unreadable(file: Path, error: Exception) -> SettingsError:
    """Says where in the user's own files it went wrong; what they called is not theirs to mend."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if file.parent in Path(frame.filename).parents
    ]
    place = f" (line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError) and error.filename is not None:
        own_name, place = Path(error.filename).name, f" (line {error.lineno})"
    else:
        own_name = Path(own[-1].filename).name if own else file.name
    if any(sign in str(error) for sign in _NO_SESSION):
        return SettingsError(
            f"{own_name}{place} needs Spark, which is not started while the file is read",
            'write types as objects there, such as LongType() in place of "bigint", or move the '
            "line into the function that uses it",
        )
    return SettingsError(
        f"{own_name}{place} cannot be read: {type(error).__name__}: {error}",
        "correct it and try again",
    )


@contextmanager
def importable(code: UserCode) -> Iterator[None]:
    """The modules beside the pipelines file can be imported meanwhile."""
    folder = str(code.file.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


@contextmanager
def _functions_of(connect: bool) -> Iterator[None]:
    """Make `@udf` and `F.col` those of Spark Connect although its session is not open yet."""
    before = os.environ.get(_CONNECT)
    if connect:
        os.environ[_CONNECT] = "1"
    try:
        yield
    finally:
        if connect and before is None:
            del os.environ[_CONNECT]


def _forget_modules() -> None:
    """Another project may have modules of the same names, and this one may have changed."""
    for name in _imported:
        sys.modules.pop(name, None)
    _imported.clear()


def _lies_in(name: str, folder: Path) -> bool:
    module = sys.modules.get(name)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(folder in Path(place).resolve().parents for place in places if place)
