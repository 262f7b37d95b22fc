"""What Spark's workers are sent, import, and say of values that cannot be staged."""

from __future__ import annotations

import io
import sys
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_manager as adbc
import psycopg
import pyarrow as pa
import pyspark
import pytest
from psycopg import errors as pg

from tidegate.core.errors import ConnectionFailed, SourceError, TidegateError, ValueRefused
from tidegate.iceberg.staged_files import LakeColumn, LakePlace, write_share
from tidegate.spark.daemon import _without_zip
from tidegate.spark.task_outcome import TaskFailure, carried_failure, failure
from tidegate.spark.transform import _adbc_failure, _equal_in_spark
from tidegate.spark.user_code import UserCode


@pytest.fixture
def code(tmp_path: Path) -> UserCode:
    folder = tmp_path / "shop"
    for name in (
        "pipelines.py",
        "rates.py",
        "money/__init__.py",
        "money/deep/words.py",
        "money/rates.csv",
        "money/.hidden/secret.py",
        "loose/script.py",
        ".env",
        "tidegate.toml",
        "tidegate.prod.toml",
        ".tidegate/logs/old.py",
        ".git/hook.py",
        "my-env/lib/__init__.py",
        "pipelines.pyc",
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return UserCode(folder / "pipelines.py", folder / ".tidegate")


def packed(code: UserCode) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(code.pack().content)) as archive:
        return sorted(archive.namelist())


def test_python_modules_and_packages_are_packed_and_nothing_else(code: UserCode) -> None:
    assert packed(code) == [
        "money/__init__.py",
        "money/deep/words.py",
        "pipelines.py",
        "rates.py",
        f"{code.module_name}.py",
    ]


def test_a_state_folder_with_a_plain_name_is_left_out(code: UserCode) -> None:
    state = code.file.parent / "state"
    state.mkdir()
    (state / "__init__.py").touch()
    assert not any("state" in name for name in packed(UserCode(code.file, state)))


def test_the_package_is_named_by_what_is_in_it(code: UserCode) -> None:
    first = code.pack()
    assert code.pack().name == first.name
    (code.file.parent / "rates.py").write_text("changed")
    assert code.pack().name != first.name


INSTALLED = str(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")


def test_the_zip_file_of_the_installed_pyspark_is_not_needed() -> None:
    assert _without_zip([INSTALLED, *sys.path]) == sys.path


def test_a_spark_that_lies_elsewhere_is_left_alone() -> None:
    other = ["/elsewhere/pyspark/python/lib/pyspark.zip", *sys.path]
    assert _without_zip(other) == other
    of_a_distribution = ["/opt/spark/python/lib/pyspark.zip", *sys.path]
    assert _without_zip(of_a_distribution) == of_a_distribution


def test_where_nothing_else_is_found_the_zip_file_stays() -> None:
    assert _without_zip([INSTALLED, "/nowhere"]) == [INSTALLED, "/nowhere"]


SECRET = "4711.0815"
TOO_BIG = pg.NumericValueOutOfRange(f'value "{SECRET}" is too big')


def raised(outcome: dict[str, Any]) -> TidegateError:
    """As the driver raises it."""
    found = carried_failure(TaskFailure(outcome))
    assert found is not None
    return found


def too_wide(tmp_path: Path) -> dict[str, Any]:
    place = LakePlace(str(tmp_path), "folder", (), "a", (LakeColumn("total", "decimal(4,2)"),))
    batch = pa.RecordBatch.from_arrays([pa.array([Decimal(SECRET)])], names=["total"])
    return write_share(place, batch, iter(()))


def unequal(_: Path) -> dict[str, Any]:
    try:
        _equal_in_spark(pa.array([SECRET + "NaN"]), pa.field("total", pa.decimal128(10, 2)))
    except TidegateError as error:
        return failure(error, "source")
    raise AssertionError("it was taken")


def of_adbc(kind: type[adbc.Error], state: str | None = None) -> dict[str, Any]:
    error = kind(f'[libpq] bad value "{SECRET}"', status_code=adbc.AdbcStatusCode.INVALID_DATA)
    error.sqlstate = state
    return _adbc_failure(error, "source")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (too_wide, "total"),
        (unequal, "total"),
        (lambda _: of_adbc(adbc.DataError), "reading the source"),
        (lambda _: of_adbc(adbc.DataError, "22003"), "reading the source"),
        (lambda _: failure(TOO_BIG, "source"), "reading the source"),
        (lambda _: failure(pg.NotNullViolation('column "total" is null'), "destination"), "total"),
        (lambda _: failure(OverflowError(SECRET), "destination"), "staging"),
    ],
)
def test_a_value_that_never_fits_is_permanent_and_says_what_to_do(
    tmp_path: Path, make: Any, names: str
) -> None:
    found = raised(make(tmp_path))
    assert isinstance(found, ValueRefused)
    assert found.permanent
    assert names in found.message
    assert SECRET not in str(found)
    assert found.hint is not None
    assert "run again" not in found.hint.split(";")[0]
    assert "correct the value" in found.hint


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (of_adbc(adbc.OperationalError), ConnectionFailed),
        (failure(psycopg.OperationalError("gone"), "source"), ConnectionFailed),
        (failure(pg.UndefinedColumn("no such column"), "source"), SourceError),
    ],
)
def test_what_may_pass_by_itself_is_not_permanent(
    outcome: dict[str, Any], kind: type[TidegateError]
) -> None:
    found = raised(outcome)
    assert type(found) is kind
    assert not found.permanent
