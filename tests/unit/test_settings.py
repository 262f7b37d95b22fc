"""Layers, profiles, environment and lazy connections of one project."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config import Settings, find_project, load_settings
from tidegate.config.layers import merge, parse_value
from tidegate.core.errors import SettingsError

Load = Callable[..., Settings]
BASE = """
[project]
name = "shop"
"""
ORDERS = """
[sync.orders]
source = "shop:public.orders"
target = "warehouse:raw.orders"
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def write_and_load(
        toml: str,
        environ: Mapping[str, str] | None = None,
        dotenv: str | None = None,
        **options: Any,
    ) -> Settings:
        (tmp_path / "tidegate.toml").write_text(toml)
        if dotenv is not None:
            (tmp_path / ".env").write_text(dotenv)
        return load_settings(tmp_path, environ=environ or {}, **options)

    return write_and_load


def test_a_name_is_enough(load: Load, tmp_path: Path) -> None:
    settings = load(BASE)
    assert settings.root == tmp_path
    assert settings.profile is None
    assert settings.project.name == "shop"
    assert settings.project.control.get_secret_value() == "embedded"
    assert settings.project.control_schema == "tidegate_control"
    assert settings.state_directory == tmp_path / ".tidegate"
    assert settings.pipelines_file == tmp_path / "pipelines.py"
    assert dict(settings.connections) == {}
    assert (settings.spark.master, settings.spark.remote, settings.spark.conf) == (
        "local[*]", None, {},
    )  # fmt: skip
    worker = settings.worker
    assert (worker.lease_seconds, worker.heartbeat_seconds) == (180.0, 30.0)
    assert (worker.publish_timeout_seconds, worker.lock_timeout_seconds) == (3600.0, 10.0)
    assert worker.max_attempts == 5
    ledger = settings.ledger
    assert (ledger.schema_name, ledger.marker_table) == ("tidegate", "table_updates")
    assert ledger.timestamps == "database"
    assert settings.sync == {}


def test_a_sync_has_its_defaults(load: Load) -> None:
    sync = load(BASE + ORDERS).sync["orders"]
    assert (sync.source, sync.target) == ("shop:public.orders", "warehouse:raw.orders")
    assert (sync.mode, sync.changes, sync.duplicates) == ("merge", "cursor", "refuse")
    assert (sync.key, sync.cursor, sync.lookback) == (None,) * 3
    assert (sync.settle_seconds, sync.batch_rows, sync.partitions) == (60.0, 500_000, None)
    assert (sync.null_cursor, sync.cursor_timezone, sync.schedule) == (None,) * 3


def test_a_sync_takes_all_its_keys(load: Load) -> None:
    sync = load(
        BASE + ORDERS + 'key = "id"\ncursor = "at"\nlookback = "10 minutes"\nsettle = 5\n'
        'null_cursor = "include"\ncursor_timezone = "Europe/Berlin"\nschedule = "* * * * *"\n'
        'duplicates = "newest"\nbatch_rows = 10\npartitions = 4\nmode = "append"\nchanges = "cdc"\n'
    ).sync["orders"]
    assert sync.key == ("id",)
    assert sync.lookback == "10 minutes"
    assert (sync.settle, sync.settle_seconds) == ("5s", 5.0)
    assert sync.cursor_timezone == "Europe/Berlin"


@pytest.mark.parametrize("written", ["1000", '"1000"', '"${N:-1000}"'])
def test_a_lookback_may_be_a_plain_number(load: Load, written: str) -> None:
    assert load(BASE + ORDERS + f"lookback = {written}").sync["orders"].lookback == 1000


def test_a_composite_key_keeps_its_order(load: Load) -> None:
    assert load(BASE + ORDERS + 'key = ["b", "a"]').sync["orders"].key == ("b", "a")


def test_numbers_may_come_from_variables(load: Load) -> None:
    settings = load(BASE + ORDERS + 'batch_rows = "${ROWS}"', {"ROWS": "1_000"})
    assert settings.sync["orders"].batch_rows == 1000


LAYERS = ("toml", "profile", "dotenv", "environ", "overrides")


@given(st.lists(st.sampled_from(LAYERS), unique=True))
def test_the_last_layer_that_speaks_wins(speaking: list[str]) -> None:
    toml = BASE + ORDERS + "[profile.prod.worker]\n"
    if "toml" in speaking:
        toml = toml.replace("[sync.orders]", "[sync.orders]\nbatch_rows = 1")
    if "profile" in speaking:
        toml += "[profile.prod.sync.orders]\nbatch_rows = 2\n"
    variable = "TIDEGATE_SYNC__ORDERS__BATCH_ROWS"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "tidegate.toml").write_text(toml)
        (root / ".env").write_text(f"{variable}=3\n" if "dotenv" in speaking else "")
        settings = load_settings(
            root,
            profile="prod",
            environ={variable: "4"} if "environ" in speaking else {},
            overrides={"sync.orders.batch_rows": 5 if "overrides" in speaking else None},
        )
    expected = max((LAYERS.index(layer) + 1 for layer in speaking), default=500_000)
    assert settings.sync["orders"].batch_rows == expected
    assert settings.sync["orders"].source == "shop:public.orders"


TABLES: Any = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers()),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.integers() | inner),
)


@given(TABLES, TABLES, TABLES)
def test_merging_keeps_order_and_touches_neither_side(a: Any, b: Any, c: Any) -> None:
    before = copy.deepcopy((a, b))
    merged = merge(a, b)
    assert (a, b) == before
    assert merge(a, {}) == a
    assert merge({}, a) == a
    assert merge(merged, b) == merged
    for key, value in b.items():
        assert merged[key] == value or isinstance(value, dict)
    assert set(merged) == set(a) | set(b)
    assert set(merge(merged, c)) == set(merge(a, merge(b, c)))


def test_defaults_lie_below_every_sync_and_below_profiles(load: Load) -> None:
    toml = BASE + ORDERS + "batch_rows = 7\n" + ORDERS.replace("orders", "items")
    toml += "[defaults]\nbatch_rows = 5\nsettle = '2s'\n[profile.p.defaults]\nsettle = '3s'\n"
    settings = load(toml, profile="p")
    assert settings.sync["orders"].batch_rows == 7
    assert settings.sync["items"].batch_rows == 5
    assert {sync.settle for sync in settings.sync.values()} == {"3s"}


def test_the_profile_comes_from_the_argument_then_the_environment_then_dotenv(load: Load) -> None:
    toml = BASE + "".join(f"[profile.{name}.spark]\nmaster = '{name}'\n" for name in "abc")
    dotenv, environ = "TIDEGATE_PROFILE=a\n", {"TIDEGATE_PROFILE": "b"}
    assert load(toml, environ, dotenv, profile="c").spark.master == "c"
    assert load(toml, environ, dotenv).spark.master == "b"
    assert load(toml, {}, dotenv).profile == "a"
    assert load(toml, {"TIDEGATE_PROFILE": ""}, "").profile is None


def test_variables_match_chosen_names_whatever_their_case(load: Load) -> None:
    toml = BASE + ORDERS.replace("sync.orders", "sync.My__Orders") + "[connections]\na-b = 'x=1'\n"
    environ = {
        "tidegate_sync__my__orders__mode": "append",
        "TIDEGATE_CONNECTIONS__A_B": "embedded:other",
        "TIDEGATE_CONNECTIONS__LAKE": '{type = "iceberg"}',
        "TIDEGATE_CONNECTIONS__LAKE__S3__ENDPOINT": "there",
        "TIDEGATE_SPARK__CONF__SPARK__SQL__shufflePartitions": "8",
        "TIDEGATE_PROJECT__NAME": "2024",
    }
    settings = load(toml, environ)
    assert settings.sync["My__Orders"].mode == "append"
    assert settings.connection("a-b").embedded_database == "other"
    assert settings.connection("LAKE".lower()).options == {"s3.endpoint": "there"}
    assert settings.spark.conf == {"spark.sql.shufflePartitions": "8"}
    assert settings.project.name == "2024"


def test_reserved_variables_and_kubernetes_links_are_no_settings(load: Load) -> None:
    names = [
        "PROJECT_DIR", "FAILPOINT", "LOG", "TEST_ANYTHING", "SERVICE_HOST", "SERVICE_PORT_HTTP",
        "PORT", "PORT_80_TCP_ADDR", "API_SERVICE_HOST", "API_PORT_80_TCP",
    ]  # fmt: skip
    load(BASE, {f"TIDEGATE_{name}": "x" for name in names} | {"tidegate_log": "x"})
    assert load(BASE, {"TIDEGATE_SERVE__PORT": "9000"}).serve.port == 9000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("true", True), ("[1, 2]", [1, 2]), ('"quoted"', "quoted"), ("plain", "plain"),
        ("", ""), ("{a = 1}", {"a": 1}), ("1\nb = 2", "1\nb = 2"), ("local[2]", "local[2]"),
        ("5 # five", 5),
    ],
)  # fmt: skip
def test_a_variable_is_a_toml_value_or_text(text: str, value: object) -> None:
    assert parse_value(("worker", "max_attempts"), text) == value


def test_references_are_replaced_in_the_file_only(load: Load) -> None:
    settings = load(
        BASE + ORDERS + 'cursor = "${C:-at}"\nkey = ["${K}", "$${K}"]\n',
        {"TIDEGATE_SYNC__ORDERS__WHERE": "${C}"},
        "K=from-dotenv\nC=",
    )
    sync = settings.sync["orders"]
    assert (sync.cursor, sync.key, sync.where) == ("at", ("from-dotenv", "${K}"), "${C}")


def test_a_variable_is_not_needed_where_a_later_layer_wins(load: Load) -> None:
    toml = BASE + 'control = "${UNSET}"\n'
    settings = load(toml, {"TIDEGATE_PROJECT__CONTROL": "embedded:c"})
    assert settings.connection("control").embedded_database == "c"


def test_spark_conf_reads_dotted_keys_and_plain_values(load: Load) -> None:
    toml = BASE + '[spark.conf]\nspark.a.b = 8\n"spark.a.c" = true\n[spark.conf.spark]\nx = "y"\n'
    settings = load(toml.replace("\n[spark.conf.spark]\nx", "\nspark.x"),
                    overrides={"spark.conf.spark.a.b": 9})  # fmt: skip
    assert settings.spark.conf == {"spark.a.b": "9", "spark.a.c": "true", "spark.x": "y"}


def test_remote_takes_the_place_of_the_default_master_only(load: Load) -> None:
    for master in ("", 'master = "local[*]"\n', 'master = ""\n'):
        spark = load(BASE + f'[spark]\n{master}remote = "sc://h"\n').spark
        assert (spark.master, spark.remote) == (None, "sc://h")
    with pytest.raises(SettingsError, match=r"spark\.remote and spark\.master are both set"):
        load(BASE + '[spark]\nmaster = "spark://h"\nremote = "sc://h"\n')
    assert load(BASE + '[spark]\nmaster = "spark://h"\nremote = ""\n').spark.remote is None


def test_a_sync_declared_in_python_gets_defaults_and_the_same_checks(load: Load) -> None:
    settings = load(BASE + "[defaults]\nbatch_rows = 5\n")
    sync = settings.make_sync(
        "orders", {"source": "a:b", "target": "c:d", "key": "id", "mode": None}
    )
    assert (sync.batch_rows, sync.key, sync.mode) == (5, ("id",), "merge")
    for values, message in (
        ({"sorce": "a:b"}, r'pipelines\.py: sync\.orders\.sorce .* did you mean "source"\?'),
        ({"source": "a:b"}, r"pipelines\.py: sync\.orders\.target is missing"),
        ({"source": "a:b", "target": "c:d", "batch_rows": 0}, r"batch_rows is 0; expected"),
    ):
        with pytest.raises(SettingsError, match=message):
            settings.make_sync("orders", values)
    with pytest.raises(SettingsError, match="not a usable name"):
        settings.make_sync("or ders", {"source": "a:b", "target": "c:d"})


def test_settings_are_frozen_and_survive_pickling(load: Load) -> None:
    settings = load(BASE + ORDERS + "[connections]\nx = '${X}'\n", {"X": "service=x"})
    with pytest.raises(pydantic.ValidationError):
        settings.profile = "x"  # type: ignore[misc]
    with pytest.raises(pydantic.ValidationError):
        settings.sync["orders"].mode = "append"  # type: ignore[misc]
    copied = pickle.loads(pickle.dumps(settings))
    assert copied.connection("x") == settings.connection("x")


def test_the_nearest_project_upwards_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "tidegate.toml").write_text(BASE)
    assert find_project(inner) == tmp_path
    (tmp_path / "a" / "tidegate.toml").mkdir()  # a folder of that name is not a project
    assert find_project(inner) == tmp_path


def test_outside_a_project_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    for attempt in (lambda: find_project(tmp_path), lambda: load_settings(tmp_path, environ={})):
        with pytest.raises(SettingsError, match="tidegate init"):
            attempt()


def test_importing_settings_loads_neither_driver_nor_spark() -> None:
    code = (
        "import sys, tidegate.config\n"
        "print([name for name in ('psycopg', 'pyspark') if name in sys.modules])"
    )
    source = str(Path(load_settings.__code__.co_filename).parents[2])
    environ = {**os.environ, "PYTHONPATH": source}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    assert run.stdout.strip() == "[]"
