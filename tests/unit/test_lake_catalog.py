"""A catalog as Spark is told of it, and the jars that Spark needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.core.errors import SettingsError
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.jars import ICEBERG, POSTGRES, fetched, find_jars, lake_conf
from tidegate.iceberg.metadata import READABLE, check_kind


def catalog(kind: str = "embedded", control: str = "host=db dbname=x", **options: str) -> Catalog:
    def lease() -> None:
        raise AssertionError("nothing is asked")

    nobody: Callable[[], object] = lease
    return Catalog("lake", kind, options, Path("/lake"), "s", lambda: control, nobody)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["/var/run/postgresql", "@abstract"])
def test_a_control_database_behind_a_unix_socket_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(SettingsError) as raised:
        catalog(control=f"host={host} dbname=x").spark_conf()
    assert "Java cannot reach over a Unix socket" in raised.value.message
    assert raised.value.hint == "give project.control with a host name, such as localhost"


def test_a_catalog_shows_none_of_its_options() -> None:
    assert "hidden" not in repr(catalog("rest", token="hidden"))


@pytest.mark.parametrize("kind", sorted({*READABLE, "embedded"}))
def test_catalogs_that_can_be_read_without_spark_are_accepted(kind: str) -> None:
    check_kind(catalog(kind))


@pytest.mark.parametrize("kind", ["rset", "nessie", "org.example.Catalog"])
def test_other_catalogs_are_refused_by_name(kind: str) -> None:
    with pytest.raises(SettingsError, match=f'catalog = "{kind}" is not one that Tidegate can'):
        check_kind(catalog(kind))


def test_jars_that_were_fetched_before_are_named_by_their_files(tmp_path: Path) -> None:
    conf = {"spark.jars.ivy": str(tmp_path)}
    assert find_jars(conf, postgres=True).to_fetch == (ICEBERG, POSTGRES)
    assert lake_conf(conf, postgres=True)["spark.jars.packages"] == f"{ICEBERG},{POSTGRES}"
    (tmp_path / "jars").mkdir()
    for package in (ICEBERG, POSTGRES):
        fetched(conf, package).write_text("")
    assert find_jars(conf, postgres=True).to_fetch == ()
    found = lake_conf(conf, postgres=True)
    assert "spark.jars.packages" not in found
    assert found["spark.jars"].count(str(tmp_path)) == 2


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
def test_jars_that_are_named_must_be_there(tmp_path: Path, prefix: str) -> None:
    jar = tmp_path / "iceberg-spark-runtime.jar"
    conf = {"spark.jars": f"{prefix}{jar},s3://elsewhere/postgresql.jar"}
    with pytest.raises(SettingsError, match=r"names .*iceberg-spark-runtime\.jar, which is not"):
        lake_conf(conf, postgres=True)
    jar.write_text("")
    assert "spark.jars" not in lake_conf(conf, postgres=True)
