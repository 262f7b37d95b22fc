"""What Spark's workers lack, told from the error that Spark makes of it."""

from __future__ import annotations

import re
import sys

from tidegate.errors import LoadError, TidegateError, TransformError
from tidegate.version import __version__

_OURS = ("tidegate", "psycopg", "psycopg_binary", "adbc_driver_manager", "adbc_driver_postgresql")
_SPARKS = ("pyspark", "pyarrow", "pandas", "numpy")
_MISSING = re.compile(r"^\s*(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", re.M)
_PYTHON = re.compile(r"Python in worker has different version: (\S+?) than that in driver: (\S+?),")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_CODE = re.compile(r"Can't get attribute '\w+' on <module '(tidegate[\w.]*)'")
_SEE = "docs/cluster.md lists what they need"


def lacking(error: BaseException) -> TidegateError | None:
    """The error in plain words if a worker lacks something that the driver has, else None."""
    text = str(error)
    if found := _PYTHON.search(text):
        theirs, ours = found.groups()
        return LoadError(
            f"Spark's workers run Python {theirs}, but this is Python {ours}",
            f"let them run {ours}, with PYSPARK_PYTHON or spark.pyspark.python, or run tidegate "
            f"with {theirs}; {_SEE}",
        )
    if found := _NO_PYTHON.search(text):
        return LoadError(
            f"Spark's workers have no Python at {found[1]}",
            "set spark.pyspark.python in [spark.conf], or PYSPARK_PYTHON, to where it is on "
            f"every executor; {_SEE}",
        )
    if found := _MISSING.search(text):
        return _without(found[1])
    if found := _OTHER_CODE.search(text):
        return other_version(__version__, None)
    return None


def other_version(ours: str, theirs: str | None) -> LoadError:
    """Driver and workers must agree on what a staged row is."""
    return LoadError(
        f"Spark's workers have {f'tidegate {theirs}' if theirs else 'another tidegate'}, "
        f"but this is tidegate {ours}",
        f"install the same on every executor: pip install tidegate=={ours}; {_SEE}",
    )


def _without(module: str) -> TidegateError:
    top = module.partition(".")[0]
    if top in _OURS:
        return LoadError(
            f"Spark's workers cannot import {top}",
            "install it in their Python on every executor: "
            f"pip install tidegate=={__version__}; {_SEE}",
        )
    if top in _SPARKS:
        return LoadError(
            f"Spark's workers cannot import {top}",
            f"install it in their Python on every executor: pip install {top}; {_SEE}",
        )
    major, minor = sys.version_info[:2]
    return TransformError(
        f"Spark's workers cannot import {module}",
        "put it beside the pipelines file, as a .py file or a folder with __init__.py, or "
        f"install it in the Python {major}.{minor} of every executor; {_SEE}",
    )
