"""What can be said of a Thrift server without one: its address, its errors, what it is sent."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.config.maintenance import MaintenanceSettings
from tidegate.core.errors import SettingsError
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.engines import ThriftEngine
from tidegate.iceberg.thrift import ThriftAddress, failure, parse_thrift_address, said
from tidegate.maintenance.procedures import is_transient

SECRET = "s3cr3t"
CONFLICT = f"""\
org.apache.hive.service.cli.HiveSQLException: Error running query: java.lang.RuntimeException: \
cannot commit with {SECRET}
\tat org.apache.spark.Some.where(Some.scala:1)
Caused by: org.apache.iceberg.exceptions.CommitFailedException: cannot commit
\t... 12 more
Caused by: org.postgresql.util.PSQLException: ERROR: attempt 7 was replaced by another
\t... 3 more
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thrift://gateway:10009", ThriftAddress("gateway", 10009)),
        ("thrift://etl@gateway:10009/raw", ThriftAddress("gateway", 10009, "etl", database="raw")),
        (
            "thrift://etl:a%40b@[::1]:1?catalog=server",
            ThriftAddress("::1", 1, "etl", "a@b", auth="LDAP", catalog_on_server=True),
        ),
        ("thrift://g:1?auth=nosasl", ThriftAddress("g", 1, auth="NOSASL")),
    ],
)
def test_an_address_says_where_and_how(text: str, expected: ThriftAddress) -> None:
    assert parse_thrift_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"thrift://u:{SECRET}@gateway",
        f"thrift://u:{SECRET}@:10009",
        f"thrift://u:{SECRET}@gateway:port",
        f"thrift://u:{SECRET}@gateway:1?auth=KERBEROS",
        f"thrift://u:{SECRET}@gateway:1?auth=NONE",
        f"thrift://u:{SECRET}@gateway:1?auth=NOSASL",
        "thrift://u@gateway:1?auth=LDAP",
        f"thrift://u:{SECRET}@gateway:1?catalog=both",
        f"thrift://u:{SECRET}@gateway:1?catalogue=server",
        f"thrift://u:{SECRET}@gateway:1?nothing",
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        ThriftEngine(text)
    assert SECRET not in str(refused.value)
    assert refused.value.hint is not None


def test_a_password_is_in_no_text_of_an_engine_or_of_the_settings() -> None:
    address = f"thrift://etl:{SECRET}@gateway:10009"
    engine = ThriftEngine(address)
    settings = MaintenanceSettings(engine=address)
    shown = (engine, engine.address, settings, settings.model_dump(), settings.model_dump_json())
    for one in shown:
        assert SECRET not in repr(one)
        assert SECRET not in str(one)
    assert settings.engine == address


def test_an_error_is_one_line_without_secrets_that_says_what_and_why() -> None:
    found = failure(ThriftAddress("gateway", 1), CONFLICT, [SECRET])
    assert found.message == (
        "thrift://gateway:1: java.lang.RuntimeException: cannot commit with ***"
        " (org.postgresql.util.PSQLException: ERROR: attempt 7 was replaced by another)"
    )
    assert SECRET not in repr(found.__cause__)
    assert is_transient(found)
    other = failure(ThriftAddress("gateway", 1), "the disk is full", ())
    assert not is_transient(other)


def test_what_spark_says_twice_is_said_once() -> None:
    twice = "[NO_COLUMN] org.apache.spark.sql.AnalysisException: [NO_COLUMN] no column x"
    assert said(f"Error running query: {twice}\n\tat some.where") == "[NO_COLUMN] no column x"
    assert said(" \n") == "it does not say why"


def some_catalog(**options: str) -> Catalog:
    def unreachable() -> str:
        raise AssertionError

    return Catalog(
        name="lake",
        kind="rest",
        options=options,
        warehouse=Path("nowhere"),
        schema="tidegate_lake",
        control=unreachable,
        lease=unreachable,  # type: ignore[arg-type]
    )


def test_an_option_that_the_server_would_change_is_refused_unless_the_server_has_it() -> None:
    catalog = some_catalog(uri="https://catalog", token=f"{SECRET}${{HOME}}")
    with pytest.raises(SettingsError, match="token") as refused:
        ThriftEngine("thrift://gateway:1").conf(catalog, "attempt")
    assert SECRET not in str(refused.value)
    sent = ThriftEngine("thrift://gateway:1?catalog=server").conf(catalog, "attempt")
    assert not any("catalog" in key for key in sent)
    plain = replace(catalog, options={"uri": "https://catalog"})
    assert (
        ThriftEngine("thrift://gateway:1").conf(plain, "attempt")["spark.sql.catalog.lake.uri"]
        == "https://catalog"
    )


def test_what_is_not_installed_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tidegate.iceberg.thrift")
    monkeypatch.setitem(sys.modules, "pyhive", None)
    with pytest.raises(SettingsError, match="pyhive") as refused:
        ThriftEngine("thrift://127.0.0.1:1").check(1)
    assert refused.value.hint == 'pip install "tidegate[thrift]"'
