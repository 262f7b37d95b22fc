"""What a staging task tells the driver: its write and count, or what went wrong, in plain words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.errors import (
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
from tidegate.model.load import StagedWrite

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

    from tidegate.postgres.connect import first_line, session_lost, translate

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


class Carried(Exception):
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
