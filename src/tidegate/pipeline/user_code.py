"""The user's Python file and the modules beside it: run here, and shipped to Spark's workers."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidegate.errors import SettingsError
from tidegate.settings import Settings
from tidegate.spark.shipping import UserCode

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
