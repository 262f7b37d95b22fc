"""Connections: how they are written, and that each is resolved only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.config import Settings, load_settings
from tidegate.core.errors import SettingsError

Load = Callable[..., Settings]
BASE = '[project]\nname = "shop"\n'


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def write_and_load(
        toml: str, environ: Mapping[str, str] | None = None, **options: Any
    ) -> Settings:
        (tmp_path / "tidegate.toml").write_text(toml)
        return load_settings(tmp_path, environ=environ or {}, **options)

    return write_and_load


def test_a_profile_replaces_a_connection_of_another_kind_and_merges_one_of_its_own(
    load: Load,
) -> None:
    toml = (
        BASE
        + """
[connections]
a = { type = "iceberg", uri = "x", warehouse = "w" }
b = { type = "iceberg", uri = "x", warehouse = "w" }
[profile.p.connections]
a = { type = "postgres", url = "embedded" }
b = { uri = "y" }
"""
    )
    settings = load(toml, profile="p")
    assert settings.connection("a").embedded_database == "tidegate"
    assert settings.connection("b").options == {
        "uri": "y",
        "warehouse": "w",
        "catalog": "rest",
    }


def test_another_catalog_replaces_all_that_was_said_of_the_first(load: Load) -> None:
    toml = BASE + '[connections]\nlake = { type = "iceberg", catalog = "rest", uri = "${U}" }\n'
    own = {"type": "iceberg", "catalog": "embedded", "warehouse": "file:///w"}
    lake = load(toml, overrides={"connections.lake": own}).connections["lake"]
    assert lake.options == {"catalog": "embedded", "warehouse": "file:///w"}


def test_the_kind_of_a_connection_is_known_without_its_variables(load: Load) -> None:
    toml = (
        BASE + '[connections]\nlake = { type = "iceberg", uri = "${U}" }\nshop = "${S}"\n'
        'other = { url = "${S}" }\n'
    )
    connections = load(toml).connections
    kinds = [connections.is_lake(name) for name in ("lake", "shop", "other")]
    assert kinds == [True, False, False]


def test_connections_are_resolved_one_by_one(load: Load) -> None:
    settings = load(BASE + "[connections]\na = '${A_URL}'\nb = 'service=shop'\nc = '${EMPTY}'\n",
                    {"EMPTY": ""})  # fmt: skip
    assert list(settings.connections) == ["a", "b", "c"]
    url = settings.connection("b").url
    assert url is not None
    assert url.get_secret_value() == "service=shop"
    with pytest.raises(SettingsError, match=r"tidegate\.toml: connections\.a needs .* A_URL"):
        settings.connection("a")
    with pytest.raises(SettingsError, match=r"connections\.c has a wrong value.*it is empty"):
        settings.connection("c")


@pytest.mark.parametrize(
    ("written", "embedded", "url"),
    [
        ('"embedded"', "tidegate", None),
        ('"embedded:shop"', "shop", None),
        ('"postgres://h/d"', None, "postgres://h/d"),
        ('" host = h dbname=d"', None, "host = h dbname=d"),
        ('{ type = "postgres", url = "embedded" }', "tidegate", None),
        ('{ url = "postgresql://h/d" }', None, "postgresql://h/d"),
    ],
)
def test_a_postgres_connection_is_a_text_or_a_table(
    load: Load, written: str, embedded: str | None, url: str | None
) -> None:
    connection = load(BASE + f"[connections]\nx = {written}\n").connection("x")
    assert (connection.name, connection.type, connection.options) == ("x", "postgres", {})
    assert connection.embedded_database == embedded
    assert (connection.url.get_secret_value() if connection.url else None) == url


def test_an_iceberg_connection_passes_its_options_through(load: Load) -> None:
    toml = BASE + '[connections.lake]\ntype = "iceberg"\nuri = "${U}"\ns3.path-style = true\n'
    lake = load(toml, {"U": "x"}).connection("lake")
    assert (lake.type, lake.url, lake.embedded_database) == ("iceberg", None, None)
    assert lake.options == {"uri": "x", "s3.path-style": "true", "catalog": "rest"}


@pytest.mark.parametrize(
    ("options", "catalog"),
    [
        ("", None),
        ('warehouse = "s3://lake"', None),
        ('uri = "https://c"', "rest"),
        ('uri = "thrift://c:9083"', "hive"),
        ('uri = "jdbc:postgresql://c/db"', "jdbc"),
        ('uri = "https://c"\ncatalog = "nessie"', "nessie"),
    ],
)
def test_the_address_of_a_catalog_tells_its_kind_where_nothing_else_does(
    load: Load, options: str, catalog: str | None
) -> None:
    lake = load(BASE + f'[connections.lake]\ntype = "iceberg"\n{options}\n').connection("lake")
    assert lake.options.get("catalog") == catalog


@pytest.mark.parametrize("value", ['""', "[1]"])
def test_an_option_of_a_lake_is_text_or_a_number(load: Load, value: str) -> None:
    with pytest.raises(SettingsError, match=r"connections\.lake\.uri has a wrong value"):
        load(BASE + f'[connections.lake]\ntype = "iceberg"\nuri = {value}\n')


def test_control_is_a_connection_of_its_own(load: Load) -> None:
    assert load(BASE).connection("control").embedded_database == "tidegate"
    control = load(BASE + "control = 'service=c'\n").connection("control")
    assert control.url is not None
    assert control.url.get_secret_value() == "service=c"


def test_an_unknown_connection_gets_the_nearest_and_the_list(load: Load) -> None:
    settings = load(BASE + "[connections]\nshop = 'x=1'\nlake = 'x=1'\n")
    with pytest.raises(SettingsError) as caught:
        settings.connection("shp")
    assert str(caught.value).splitlines() == [
        'there is no connection "shp"; did you mean "shop"?',
        "  [connections] in tidegate.toml declares: lake, shop",
    ]
