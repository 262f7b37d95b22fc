"""What a Spark task reports: rows written, or the reason it failed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import (
    ConnectionFailed,
    DestinationError,
    LoadError,
    SourceBusy,
    SourceError,
    TidegateError,
    TransformError,
    ValueRefused,
    without_values,
    words,
)
from tidegate.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

OUTCOME_SCHEMA = (
    "copy int, write_id string, rows bigint, kind string, message string, "
    "hint string, detail string"
)

_CARRIED = "tidegate failed: "
_KINDS: dict[str, type[TidegateError]] = {
    kind.__name__: kind
    for kind in (
        ConnectionFailed,
        DestinationError,
        LoadError,
        ValueRefused,
        SourceBusy,
        SourceError,
        TransformError,
    )
}
VALUE_HINT = (
    "correct the value in the source, or read a view that casts the column or leaves it out; "
    "nothing was published, and until then every run fails in the same way"
)
# Of Postgres' errors, those that a value is at fault for.
_VALUE_STATES = ("22", "23")
_QUOTED_VALUE = re.compile(r"(: |value )\"[^\"]*\"")


def failure(error: BaseException, side: str) -> dict[str, Any]:
    """A failed write as a row; the driver raises it again under its own type."""
    import psycopg
    import pyarrow as pa
    from psycopg import errors as pg

    from tidegate.postgres.connection import first_line, session_lost, translate

    doing = "reading the source" if side == "source" else "staging into the destination"
    if isinstance(error, psycopg.Error):
        if (error.sqlstate or "").startswith(_VALUE_STATES):
            said = _QUOTED_VALUE.sub(r"\1…", first_line(error))
            found: TidegateError = ValueRefused(f"{doing}: {said}", VALUE_HINT, detail=str(error))
        elif side == "source" and isinstance(error, pg.LockNotAvailable | pg.DeadlockDetected):
            found = SourceBusy(
                f"the source is locked by another session: {first_line(error)}",
                "run again when that has ended; nothing was published",
            )
        elif side == "source" and not session_lost(error):
            found = SourceError(f"{doing}: {first_line(error)}", detail=str(error))
        else:
            found = translate(error, doing)
    elif isinstance(error, TidegateError):
        found = error
    elif isinstance(error, pa.ArrowInvalid | pa.ArrowCapacityError | OverflowError | UnicodeError):
        # Their words hold the value.
        found = ValueRefused(
            f"{doing}: a value cannot be held ({type(error).__name__})",
            VALUE_HINT,
            detail=str(error),
        )
    else:
        found = LoadError(f"staging failed: {words(error)}", detail=str(error))
    kind = next((name for name, known in _KINDS.items() if isinstance(found, known)), "LoadError")
    return {
        "kind": kind,
        "message": found.message,
        "hint": found.hint,
        "detail": found.detail,
    }


class TaskFailure(Exception):
    """A failure on its way through Spark, which hands on nothing but the text of an exception."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        super().__init__(f"{_CARRIED}{json.dumps(outcome)}")
        self.outcome = outcome


def carried_failure(error: BaseException) -> TidegateError | None:
    """The failure that a task sent through Spark, if there is one in what Spark says."""
    start = str(error).find(_CARRIED)
    if start < 0:
        return None
    outcome, _ = json.JSONDecoder().raw_decode(str(error), start + len(_CARRIED))
    return raised(outcome)


def outcome_batches(*outcomes: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("copy", pa.int32()),
            ("write_id", pa.string()),
            ("rows", pa.int64()),
            ("kind", pa.string()),
            ("message", pa.string()),
            ("hint", pa.string()),
            ("detail", pa.string()),
        ]
    )
    full = [{name: outcome.get(name) for name in schema.names} for outcome in outcomes]
    yield pa.RecordBatch.from_pylist(full, schema=schema)


def spark_reason(error: BaseException) -> str:
    """Why Spark gave up, in one line: the last cause that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.partition("Exception: ")[2] for line in lines if "Exception: " in line]
    causes = [
        line.partition("Exception: ")[2]
        for line in lines
        if line.startswith("Caused by: ") and "Exception: " in line
    ]
    found = next(iter([*causes[-1:], *said[:1], *lines[:1]]), type(error).__name__)
    return without_values(found)


def collect_writes(
    frame: DataFrame, copies: int = 1
) -> list[tuple[StagedWrite, ...] | TidegateError]:
    """Run the tasks; one small row comes back from each writer call, told apart by its copy."""
    writes: list[list[StagedWrite]] = [[] for _ in range(copies)]
    failures: dict[int, TidegateError] = {}
    for row in frame.collect():
        number = row["copy"] or 0
        if row["kind"] is not None:
            failures.setdefault(number, raised(row))
        elif row["rows"]:
            writes[number].append(StagedWrite(row["write_id"], row["rows"]))
    return [failures.get(number) or tuple(found) for number, found in enumerate(writes)]


def raised(outcome: Any) -> TidegateError:
    """The failure that an outcome stands for."""
    kind = _KINDS[outcome["kind"]]
    return kind(outcome["message"], outcome["hint"], detail=outcome["detail"])


def only(outcomes: list[tuple[StagedWrite, ...] | TidegateError]) -> tuple[StagedWrite, ...]:
    """The writes of a job that staged one batch; its failure is raised."""
    (outcome,) = outcomes
    if isinstance(outcome, TidegateError):
        raise outcome
    return outcome


_OURS = ("tidegate", "psycopg", "psycopg_binary", "adbc_driver_manager", "adbc_driver_postgresql")
_SPARKS = ("pyspark", "pyarrow", "pandas", "numpy")
_MISSING = re.compile(r"^\s*(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", re.M)
_PYTHON = re.compile(r"Python in worker has different version: (\S+?) than that in driver: (\S+?),")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_CODE = re.compile(r"Can't get attribute '\w+' on <module '(tidegate[\w.]*)'")
_SEE = "docs/guides/cluster.md lists what they need"


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
