"""Rows from source to staging through a DataFrame: Arrow in, the user's function, Arrow out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidegate.core.batch import StagedWrite
from tidegate.core.errors import (
    DeclarationError,
    TidegateError,
    TransformError,
    ValueRefused,
    without_values,
    words,
)
from tidegate.core.failpoints import reach
from tidegate.core.identity import new_write_id, staging_table
from tidegate.postgres.connection import OWN_PATH, PATH, SESSION
from tidegate.postgres.types import postgres_type
from tidegate.spark.binary_copy import SnapshotReader, StagingPlace
from tidegate.spark.tags import tagged, work_tag
from tidegate.spark.task_outcome import (
    OUTCOME_SCHEMA,
    VALUE_HINT,
    TaskFailure,
    carried_failure,
    collect_writes,
    failure,
    lacking,
    only,
    outcome_batches,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def read_frame(
    spark: SparkSession, reader: SnapshotReader, columns: Sequence[tuple[str, str]]
) -> DataFrame:
    """The batch as a DataFrame; `columns` are names with their Spark types."""
    count = len(reader.statements)
    schema = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from read_share(reader, index, columns)

    return spark.range(0, count, 1, count).mapInArrow(work, schema)


def apply_transform(function: Callable[[Any], Any], frame: DataFrame, sync_name: str) -> DataFrame:
    """Call the user's function and check that a DataFrame comes back."""
    try:
        result = function(frame)
        # Spark Connect looks at a plan only now, and then finds what is wrong with it.
        is_frame = hasattr(result, "mapInArrow") and hasattr(result, "schema")
    except TidegateError:
        raise
    except Exception as error:
        carried = carried_failure(error)
        if carried is not None:
            raise carried from error
        if (known := lacking(error)) is not None:
            raise known from error
        raise TransformError(
            f"the transformation of sync {sync_name} failed: {words(error)}",
            "correct the function and run again; nothing was published",
        ) from error
    if not is_frame:
        raise TransformError(
            f"the transformation of sync {sync_name} returned {type(result).__name__}, "
            "not a DataFrame",
            "return the DataFrame at the end of the function",
        )
    frame_out: DataFrame = result
    return frame_out


def frame_columns(frame: DataFrame, what: str) -> list[tuple[str, str, str]]:
    """(name, Spark type, Postgres type) of a DataFrame, refusing what Postgres cannot take."""
    found: list[tuple[str, str, str]] = []
    for field in frame.schema.fields:
        spark_name = field.dataType.simpleString()
        target = postgres_type(spark_name)
        if target is None:
            raise DeclarationError(
                f"{what}: column {field.name} is {spark_name}, which Postgres has no column type "
                "for",
                "turn it into text with to_json(…), or into plain columns",
            )
        found.append((field.name, spark_name, target))
    names = [name for name, _, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DeclarationError(
            f"{what} has column {twice} twice",
            "give the columns different names",
        )
    return found


class StagingTarget(Protocol):
    """Where rows are staged."""

    @property
    def attempt_id(self) -> str: ...

    @property
    def columns(self) -> Sequence[object]: ...


P = TypeVar("P", bound=StagingTarget)
Write = Callable[[P, "pa.RecordBatch", Iterator["pa.RecordBatch"]], dict[str, Any]]


def stage_frame(
    frame: DataFrame, place: P, what: str, write_share: Write[P]
) -> tuple[StagedWrite, ...]:
    """Stage a DataFrame's rows, one writer call for each of its partitions."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rest = iter(batches)
        first = next((batch for batch in rest if batch.num_rows), None)
        if first is not None:
            yield from outcome_batches(write_share(place, first, rest))

    # mapInArrow looks its columns up by name, where a dot or a backtick has a meaning.
    numbered = frame.toDF(*(f"c{index}" for index in range(len(place.columns))))
    try:
        with tagged(frame.sparkSession, work_tag(place.attempt_id)):
            return only(collect_writes(numbered.mapInArrow(work, OUTCOME_SCHEMA)))
    except TidegateError:
        raise
    except Exception as error:
        carried = carried_failure(error)
        if carried is not None:
            raise carried from error
        if (known := lacking(error)) is not None:
            raise known from error
        raise TransformError(
            f"{what} failed while it ran: {_cause(error)}",
            "correct it and run again; nothing was published",
        ) from error


def read_share(
    reader: SnapshotReader, index: int, columns: Sequence[tuple[str, str]]
) -> Iterator[pa.RecordBatch]:
    """What goes wrong with the source is not the transformation's fault, and must not look so."""
    import adbc_driver_postgresql.dbapi as adbc

    try:
        yield from _read_share(reader, index, columns)
    except adbc.Error as error:
        raise TaskFailure(_adbc_failure(error, "source")) from None
    except TidegateError as error:
        raise TaskFailure(failure(error, "source")) from None


def _read_share(
    reader: SnapshotReader, index: int, columns: Sequence[tuple[str, str]]
) -> Iterator[pa.RecordBatch]:
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa

    with adbc.connect(reader.arrow_conninfo, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in (
            *SESSION.split("; "),
            *reader.snapshot.entering(),
            *([f"SET LOCAL {OWN_PATH}"] if reader.own_path else []),
        ):
            cursor.execute(statement)
        cursor.execute(reader.statements[index])
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
        for batch in cursor.fetch_record_batch():
            yield pa.RecordBatch.from_arrays(
                [
                    _equal_in_spark(column, field)
                    for column, field in zip(batch.columns, schema, strict=True)
                ],
                schema=schema,
            )
        cursor.close()


def _equal_in_spark(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column in Spark's type; a value that Spark has no equal of is refused by name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        plain = column.cast(pa.int64() if column.type.bit_width == 64 else pa.int32())
        lowest = pc.min(plain).as_py()
        # Both infinities arrive far below 4713 BC, where Postgres' own times begin.
        if lowest is not None and lowest < -(2 ** (column.type.bit_width - 4)):
            raise ValueRefused(
                f"column {field.name} holds infinity or a time beyond the year 294246, which "
                "Spark does not know",
                VALUE_HINT,
            )
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise ValueRefused(
            f"column {field.name} holds a value that does not fit {field.type}",
            VALUE_HINT,
            detail=str(error),
        ) from None


def copy_share(
    place: StagingPlace, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
) -> dict[str, Any]:
    """One writer call: its own table in the destination."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa

    write_id = new_write_id()
    rows = 0
    names = [name for name, _ in place.columns]
    schema = pa.schema(list(zip(names, first.schema.types, strict=True)))

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in _chain(first, rest):
            rows += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, names=names)

    table = staging_table(place.control_id, place.attempt_id, write_id)
    try:
        place.check_version()
        with adbc.connect(place.conninfo, autocommit=False) as connection:
            cursor = connection.cursor()
            cursor.execute(f"SET {PATH}")
            cursor.execute(place.create_statement(write_id).as_string(None))
            reach("stage.write")
            cursor.adbc_ingest(
                table,
                pa.RecordBatchReader.from_batches(schema, counted()),
                mode="append",
                db_schema_name=place.schema,
            )
            connection.commit()
            cursor.close()
        reach("stage.written")
    except adbc.Error as error:
        return _adbc_failure(error, "destination")
    except Exception as error:
        return failure(error, "destination")
    return {"write_id": write_id, "rows": rows}


def _adbc_failure(error: Any, side: str) -> dict[str, Any]:
    """ADBC's errors carry the SQLSTATE; psycopg knows which error of its own that is."""
    import adbc_driver_postgresql.dbapi as adbc
    import psycopg
    import pyarrow as pa

    state = getattr(error, "sqlstate", None)
    unheld = adbc.DataError | adbc.NotSupportedError | adbc.InternalError
    if state is None and isinstance(error, unheld):
        # The server gave the rows, and the driver has no equal of what they hold.
        return failure(pa.ArrowInvalid(), side)
    known = psycopg.errors.lookup(state) if state else psycopg.OperationalError
    found = failure(known(_first_line(error)), side)
    return {**found, "detail": str(error)}


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def arrow_type(kind: str) -> pa.DataType:
    """A type of Spark's, in Arrow."""
    import pyarrow as pa

    if kind.startswith("decimal("):
        precision, scale = kind[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[kind]


_NAMING = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _cause(error: BaseException) -> str:
    """The last line of a worker's traceback says what went wrong there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [
        line
        for line in lines
        if line.split(":")[0].endswith(("Error", "Exception"))
        and not line.startswith(("org.apache.spark", "Caused by"))
        and " " not in line.split(":")[0]
    ]
    found = causes[-1] if causes else (lines[0] if lines else type(error).__name__)
    return found if found.startswith(_NAMING) else without_values(found)
