"""What a user reads when a setting is wrong."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config import load_settings
from tidegate.config.files import malformed
from tidegate.config.sections import FIXED, SyncSettings
from tidegate.config.value_types import keys_of
from tidegate.core.errors import SettingsError

BASE = '[project]\nname = "shop"\n'
ORDERS = '[sync.orders]\nsource = "a:b"\ntarget = "c:d"\n'
SECRET = "Hunter2Zebra"
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def fail(
    root: Path, toml: str, environ: Mapping[str, str] | None = None, **options: Any
) -> list[str]:
    (root / "tidegate.toml").write_text(toml)
    with pytest.raises(SettingsError) as caught:
        load_settings(root, environ=environ or {}, **options)
    assert caught.value.exit_code == 2
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        (
            ORDERS + 'cursr = "x"',
            'tidegate.toml: sync.orders.cursr is not a setting; did you mean "cursor"?',
        ),
        ("[snyc.a]\nb = 1", 'tidegate.toml: snyc is not a setting; did you mean "sync"?'),
        (
            "[profile.prod.worker]\nleese = 1",
            'tidegate.toml: profile.prod.worker.leese is not a setting; did you mean "lease"?',
        ),
        ("[ledger]\nschema_name = 'x'", "tidegate.toml: ledger.schema_name is not a setting"),
        ("[defaults]\ncursor = 'x'", "tidegate.toml: defaults.cursor is not a setting"),
        (
            ORDERS + 'batch_rows = "many"',
            'tidegate.toml: sync.orders.batch_rows is "many"; expected a whole number, 1 or more',
        ),
        (ORDERS + "batch_rows = 0", "sync.orders.batch_rows is 0; expected"),
        (ORDERS + "batch_rows = true", "sync.orders.batch_rows is true; expected"),
        (ORDERS + "partitions = 1025", "is 1025; expected a whole number from 1 to 1024"),
        ("[resources]\nshop = 0", "resources.shop is 0; expected a whole number from 1 to 10000"),
        ("[scheduler]\ndisable_after = 0", "scheduler.disable_after is 0; expected"),
        (ORDERS + 'schedule = "daily"', 'sync.orders.schedule is "daily"; expected five fields'),
        (ORDERS + "resources = [1]", "sync.orders.resources is [1]; expected a name or a list"),
        (ORDERS + "key = []", "sync.orders.key is []; expected a column"),
        (ORDERS + 'key = ["a", "a"]', "expected a column or a list of different columns"),
        (ORDERS + "cursor = 5", "sync.orders.cursor is 5; expected text in quotes"),
        (ORDERS + "lookback = -5", "or a whole number for an integer cursor"),
        (ORDERS + 'lookback = "-5 s"', "or a whole number for an integer cursor"),
        (ORDERS + 'cursor_timezone = "Europe/Berln"', 'did you mean "Europe/Berlin"?'),
        (
            ORDERS + 'mode = "mergee"',
            'is "mergee"; expected one of "merge", "append", "delete_insert", "replace"; '
            'did you mean "merge"?',
        ),
        (
            "[sync.orders]\nsource = 'a:b'\ntarget = 'raw.orders'",
            'sync.orders.target is "raw.orders"; expected "connection:schema.table"',
        ),
        ("[sync.orders]\nsource = 'a:b'", "tidegate.toml: sync.orders.target is missing"),
        ("[sync.or-ders]\nsource = 'a:b'\ntarget = 'a:b'", "sync.or-ders is not a usable name"),
        ("[sync]\norders = 5", "sync.orders is 5; expected a table, [sync.orders]"),
        ("[[spark]]\nmaster = 'x'", "expected a table, [spark]"),
        (
            "[worker]\nheartbeat = '61s'",
            'worker.heartbeat is "61s"; it must be at most a third of worker.lease ("180s")',
        ),
        ("[worker]\nlease = '0s'", 'worker.lease is "0s"; expected a duration above zero'),
        ("[worker]\nlease = 'soon'", '"180s", "10 minutes", "1h", "1 day" or "500ms"'),
        ("[ledger]\nschema = 'pg_x'", 'expected a name that does not begin with "pg_"'),
        ("[ledger]\nmarker_table = ''", "expected a name of 1 to 63 bytes"),
        ("[spark]\nremote = 'h:1'", "expected a Spark Connect URL"),
        ("[spark.conf]\na = [1]", 'expected text, a number, true or false for "a"'),
        ("[connections]\ncontrol = 'embedded'", "set project.control instead"),
        ("[connections]\nx = 'mysql://h/d'", "connections.x has a wrong value; expected"),
        ("[connections]\nx = 'jdbc:postgresql://h/d'", "leave out jdbc:"),
        ("[connections]\nx = 'postgresql+psycopg://h/d'", "leave out the driver"),
        ("[connections]\nx = 'embedded:a b'", '"embedded:NAME" where NAME is'),
        ("[connections]\nx = { type = 'mysql' }", "connections.x.type has a wrong value"),
        ("[connections]\nx = { type = 'postgres' }", "connections.x.url is missing"),
        ("[connections]\nx = { url = 'x=1', usr = 'x' }", "connections.x.usr is not a setting"),
        ("[connections]\n'a b' = 'embedded'", 'connections."a b" is not a usable name'),
        (
            "[ledger]\nschema = '${NOWHERE}'",
            "tidegate.toml: ledger.schema needs the variable NOWHERE, which is not set",
        ),
        ("[ledger]\nschema = '${'", "write $${ for a literal ${"),
        ("profile = 3", "profile is 3; expected [profile.NAME]"),
        ("[profile]\nprod = 3", "profile.prod is 3; expected a table, [profile.prod]"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_its_remedy(
    tmp_path: Path, toml: str, line: str
) -> None:
    toml = f"{toml}\n{BASE}" if toml.startswith("profile =") else f"{BASE}{toml}\n"
    lines = fail(tmp_path, toml)
    assert len(lines) == 1
    assert line in lines[0]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 64, "é", "a\n", "a/b"])
def test_a_project_name_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    lines = fail(tmp_path, f"[project]\nname = {json.dumps(name)}\n")
    assert "project.name is" in lines[0]


def test_a_missing_project_name_is_asked_for(tmp_path: Path) -> None:
    assert 'add [project] with name = "..."' in fail(tmp_path, "")[0]


def test_all_mistakes_are_listed_at_once_each_on_its_line(tmp_path: Path) -> None:
    toml = BASE + ORDERS + "cursr = 'x'\nmode = 'x'\nsettle = '${NOWHERE}'\n[worker]\nlease = 'x'\n"
    lines = fail(tmp_path, toml, {"TIDEGATE_SPARK__MASTR": "x"}, overrides={"ledger.skema": "x"})
    places = ["sync.orders.cursr", "TIDEGATE_SPARK__MASTR", "ledger.skema", "sync.orders.settle",
              "worker.lease", "sync.orders.mode"]  # fmt: skip
    assert len(lines) == len(places)
    for place in places:
        assert sum(place in line for line in lines) == 1, place


def test_a_mistake_in_defaults_is_told_once(tmp_path: Path) -> None:
    toml = BASE + ORDERS + ORDERS.replace("orders", "items") + "[defaults]\nsettle = 'x'\n"
    lines = fail(tmp_path, toml)
    assert len(lines) == 1
    assert lines[0].startswith('tidegate.toml: defaults.settle is "x"')


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("TIDEGATE_SPARK__MASTR", "x", "is not a setting; did you mean TIDEGATE_SPARK__MASTER?"),
        ("TIDEGATE_SPARK_MASTER", "x", "is not a setting; did you mean TIDEGATE_SPARK__MASTER?"),
        (
            "TIDEGATE_SYNC__ORDERS__BATCHROWS",
            "1",
            "did you mean TIDEGATE_SYNC__ORDERS__BATCH_ROWS?",
        ),
        ("TIDEGATE_SYNC__ORDERS__BATCH_ROWS", "no", 'is "no"; expected a whole number'),
        ("TIDEGATE_SYNC__ORDERS__", "no", "is not a setting"),
        ("TIDEGATE_PROFILE__X__SPARK__MASTER", "no", "is not a setting"),
        ("TIDEGATE_SPARK", "{mastr = 1}", 'spark.mastr is not a setting; did you mean "master"?'),
        ("TIDEGATE_SPARK", "x", 'is "x"; expected a table'),
        ("TIDEGATE_CONNECTIONS__X", SECRET, "has a wrong value; expected"),
        ("TIDEGATE_PROJECT__CONTROL", SECRET, "has a wrong value; expected"),
        ("TIDEGATE_XYZZY", SECRET, "is not a setting; write TIDEGATE_SECTION__KEY"),
    ],
)
def test_a_wrong_variable_is_named_as_it_is_written(
    tmp_path: Path, variable: str, value: str, line: str
) -> None:
    lines = fail(tmp_path, BASE + ORDERS, {variable: value})
    assert len(lines) == 1
    assert lines[0].startswith(f"environment: {variable}")
    assert line in lines[0]
    (tmp_path / ".env").write_text(f"{variable}='{value}'\n")
    assert fail(tmp_path, BASE + ORDERS)[0].startswith(f".env: {variable}")


def test_a_variable_for_an_undeclared_sync_gets_the_nearest_one(tmp_path: Path) -> None:
    lines = fail(tmp_path, BASE + ORDERS, {"TIDEGATE_SYNC__ORDRS__BATCH_ROWS": "5"})
    assert lines[0].startswith("environment: TIDEGATE_SYNC__ORDRS__BATCH_ROWS: sync.ordrs.source")
    assert 'did you mean the sync "orders"?' in lines[0]


def test_a_missing_key_is_asked_for_where_its_sync_was_declared(tmp_path: Path) -> None:
    toml = BASE + "[sync.orders]\nsource = 'a:b'\n"
    lines = fail(tmp_path, toml, {"TIDEGATE_SYNC__ORDERS__MODE": "append"})
    assert lines == [
        'tidegate.toml: sync.orders.target is missing; write target = "connection:schema.table"'
    ]


def test_an_unknown_profile_lists_those_that_exist(tmp_path: Path) -> None:
    toml = BASE + "[profile.prod.worker]\n[profile.dev.worker]\n"
    text = "\n".join(fail(tmp_path, toml, profile="prd"))
    assert 'no profile "prd"; did you mean "prod"?; it has dev, prod' in text
    assert "it has dev, prod" in fail(tmp_path, toml, {"TIDEGATE_PROFILE": "zzz"})[0]
    assert 'no profile "x"' in fail(tmp_path, BASE, profile="x")[0]


def test_malformed_toml_is_shown_with_line_and_column(tmp_path: Path) -> None:
    lines = fail(tmp_path, BASE + ORDERS + 'cursor "updated_at"\n')
    assert lines[0].startswith("tidegate.toml: line 6, column 8: ")
    assert lines[1:] == ['    cursor "updated_at"', "           ^"]
    lines = fail(tmp_path, BASE + ORDERS + 'cursor = "updated_at')
    assert lines[0].startswith("tidegate.toml: line 6, column ")
    assert lines[1] == '    cursor = "updated_at'


@given(st.text(), st.integers(0, 50), st.integers(1, 50))
def test_explaining_malformed_toml_never_fails(text: str, line: int, column: int) -> None:
    for position in (f"at line {line + 1}, column {column}", "at end of document"):
        assert malformed(text, f"Bad ({position})").startswith("tidegate.toml: line ")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_bytes(b"[project]\nname = '\xff'\n")
    with pytest.raises(SettingsError, match="line 2 is not UTF-8"):
        load_settings(tmp_path, environ={})


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load_settings(tmp_path, environ={}).project.name == "shop"


def test_every_key_of_every_section_is_documented() -> None:
    page = DOCS.read_text()
    keys = [f"{section}.{key}" for section, model in FIXED.items() for key in keys_of(model)]
    keys += [f"sync.NAME.{key}" for key in keys_of(SyncSettings)]
    keys += ["connections.NAME.type", "connections.NAME.url"]
    assert [key for key in keys if f"`{key}`" not in page] == []
    for section in (*FIXED, "connections", "sync.NAME"):
        assert f"## `[{section}]`" in page


def test_the_examples_in_the_documentation_load(tmp_path: Path) -> None:
    blocks = [block.split("```")[0] for block in DOCS.read_text().split("```toml\n")[1:]]
    assert len(blocks) >= 8
    for block in blocks:
        toml = block if "[project]" in block else BASE + block
        (tmp_path / "tidegate.toml").write_text(toml)
        load_settings(tmp_path, environ={})
