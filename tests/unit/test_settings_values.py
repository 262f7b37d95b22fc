"""Values of settings on their own: durations, variables, shapes, notices and secrets."""

from __future__ import annotations

import contextlib
import re
import traceback
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tidegate.config import Settings, load_settings
from tidegate.config.files import (
    MalformedReference,
    UnsetVariable,
    interpolate,
    parse_dotenv,
    variables_in,
)
from tidegate.config.sections import CdcSettings, SafetySettings
from tidegate.core.errors import SettingsError
from tidegate.core.units import format_duration, parse_duration

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
VARIABLES = st.dictionaries(NAMES, st.text(max_size=20), max_size=4)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("180s", 180.0),
        ("10 minutes", 600.0),
        ("1h", 3600.0),
        ("1 day", 86_400.0),
        ("500ms", 0.5),
        ("1h 30m", 5400.0),
        ("1h30m", 5400.0),
        ("2 Weeks", 1_209_600.0),
        ("1.5 hours", 5400.0),
        (" 7 sec ", 7.0),
        ("90", 90.0),
        (90, 90.0),
        (0.1, 0.1),
        ("0s", 0.0),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "soon", "10 parsecs", "-5s", "5 s s", "s", "1e9s", "PT10M", "9" * 400 + "d", True,
     None, -1, float("nan"), float("inf"), 10**30, [], "1h and", "40000 days", "2 000 s",
     "\u0661s"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_examples(text: object) -> None:
    with pytest.raises(ValueError, match=re.escape('"180s", "10 minutes", "1h", "1 day"')):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=36_525 * 86_400_000))
@example(0)
@example(1)
@example(86_400_000)
def test_a_formatted_duration_reads_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_duration(text) >= 0


@given(st.text().filter(lambda text: "${" not in text), VARIABLES)
def test_text_without_references_stays_as_it_is(text: str, variables: dict[str, str]) -> None:
    assert interpolate(text, variables) == text


@given(st.text().map(lambda text: text.replace("$", "")), NAMES, st.text(), st.text(max_size=5))
def test_a_reference_becomes_the_variable_untouched(
    before: str, name: str, value: str, after: str
) -> None:
    assert interpolate(f"{before}${{{name}}}{after}", {name: value}).startswith(before + value)
    assert variables_in(f"{before}${{{name}}}") == {name}


@given(NAMES, st.text().map(lambda text: text.replace("}", "")))
def test_the_default_counts_only_for_unset_and_empty_variables(name: str, default: str) -> None:
    reference = f"${{{name}:-{default}}}"
    assert interpolate(reference, {}) == default
    assert interpolate(reference, {name: ""}) == default
    assert interpolate(reference, {name: "x"}) == "x"


@given(st.text().filter(lambda text: not text.endswith("$")), VARIABLES)
def test_escaping_every_reference_gives_the_text_back(text: str, variables: dict[str, str]) -> None:
    # "$${" is the only text that cannot be escaped by doubling the dollar before its brace.
    if "$${" not in text:
        assert interpolate(text.replace("${", "$${"), variables) == text


def test_what_a_variable_brings_in_is_not_looked_at_again() -> None:
    assert interpolate("${A}", {"A": "${B}", "B": "no"}) == "${B}"


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(UnsetVariable, match="SHOP_URL"):
        interpolate("x${SHOP_URL}", {"SHOP": "y"})


def test_an_empty_variable_without_default_is_empty() -> None:
    assert interpolate("<${A}>", {"A": ""}) == "<>"


@pytest.mark.parametrize("text", ["${", "${A", "${1A}", "${A B}", "${}", "${A-b}", "${A:b}"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(MalformedReference, match=re.escape("$${")):
        interpolate(text, {"A": "x"})


def test_a_dotenv_file_is_read_as_shells_write_it() -> None:
    text = """
# a comment
PLAIN=value
  export EXPORTED = spaced out   # comment
HASH=a#b
EMPTY=
SINGLE='a "b" # \\n $x'  # comment
DOUBLE="a 'b' # \\n \\"c\\" \\\\ \\$x"
EQUALS=a=b=c
URL=postgresql://u:p%40@h/d?x=1
""".replace("\nEMPTY", "\r\nEMPTY")
    assert parse_dotenv(text) == {
        "PLAIN": "value",
        "EXPORTED": "spaced out",
        "HASH": "a#b",
        "EMPTY": "",
        "SINGLE": 'a "b" # \\n $x',
        "DOUBLE": "a 'b' # \n \"c\" \\ $x",
        "EQUALS": "a=b=c",
        "URL": "postgresql://u:p%40@h/d?x=1",
    }


def test_a_malformed_dotenv_names_every_line_and_shows_none() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_dotenv('GOOD=1\nhunter2\nA=\'hunter2\nB="hunter2" x\n1C=hunter2')
    assert str(caught.value).splitlines() == [
        ".env: line 2 is not KEY=value",
        ".env: line 3 (A) has an unfinished quote",
        ".env: line 4 (B) has an unfinished quote",
        ".env: line 5 is not KEY=value",
    ]


@given(st.dictionaries(NAMES, st.text(st.characters(exclude_characters="'\n\r\x00"))))
def test_single_quotes_keep_any_line_of_text(variables: dict[str, str]) -> None:
    text = "\n".join(f"{name}='{value}'" for name, value in variables.items())
    assert parse_dotenv(text) == variables


def test_the_warning_of_a_slot_comes_before_its_limit() -> None:
    with pytest.raises(ValidationError, match=r"larger than cdc.max_retained"):
        CdcSettings.model_validate({"warn_retained": "2GB", "max_retained": "1GB"})
    assert CdcSettings.model_validate({"warn_retained": "512MB"}).warn_retained == 512 << 20


def test_safety_asks_from_a_half_on_and_waits_five_seconds() -> None:
    safety = SafetySettings()
    assert (safety.max_removed, safety.lock_timeout_seconds) == (0.5, 5.0)
    assert SafetySettings.model_validate({"max_removed": "20%"}).max_removed == 0.2
    for values in ({"max_removed": 1.5}, {"lock_timeout": "0s"}):
        with pytest.raises(ValidationError):
            SafetySettings.model_validate(values)


SYNC = '[project]\nname = "p"\n[connections]\nshop = "embedded"\n[sync.a]\n'
TABLE = SYNC + 'source = "shop:orders"\ntarget = "shop:raw.orders"\n'
QUERY = SYNC + 'source = "shop"\ntarget = "shop:raw.orders"\n'


def read(folder: Path, text: str) -> Settings:
    (folder / "tidegate.toml").write_text(text, encoding="utf-8")
    return load_settings(folder, environ={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (QUERY, 'sync.a.source is "shop"; expected "connection:schema.table", or a query'),
        (TABLE + 'query = "SELECT 1"', 'beside a query; expected the connection alone, "shop"'),
        (QUERY + 'query = "SELECT 1"\nwhere = "a"', "where is set beside a query"),
        (QUERY + 'query = " ; "', "a piece of SQL"),
        (TABLE + 'columns = ["a"]\nexclude_columns = ["b"]', "and columns are both set"),
        (TABLE + 'before_sql = "COMMIT"', "COMMIT would"),
        (TABLE + 'after_sql = ["ANALYZE a", "/* x */ -- y\\n rollback to x"]', "ROLLBACK would"),
        (TABLE + "before_sql = [1]", "a statement or a list of statements"),
        (TABLE + 'checks = "a > 0"', "a table of names and conditions"),
        (TABLE + "checks = { a = 1 }", "a table of names and conditions"),
        (TABLE + "reject_limit = 2", "a share from 0 to 1"),
        (TABLE + 'reject_limit = "101%"', "a share from 0 to 1"),
        (TABLE + "reject_limit = true", "a share from 0 to 1"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, text)
    assert words in str(raised.value)
    assert "sync.a" in str(raised.value)


def test_shapes_are_read_as_written(tmp_path: Path) -> None:
    sync = read(
        tmp_path,
        TABLE + 'columns = "id"\nwhere = "a;"\nafter_sql = ["ANALYZE a;", "CALL f()"]\n'
        'reject_limit = "2.5%"\nchecks = { a = "a > 0", "b c" = "b" }',
    ).sync["a"]
    assert (sync.columns, sync.where, sync.reject_limit) == (("id",), "a", 0.025)
    assert sync.after_sql == ("ANALYZE a", "CALL f()")
    assert sync.checks == {"a": "a > 0", "b c": "b"}


SECRET = "Hunter2Zebra"
URL = f"https://hooks.example.com/services/{SECRET}"


def load(root: Path, notify: str, **environ: str) -> Settings:
    (root / "tidegate.toml").write_text(f'[project]\nname = "shop"\n[notify]\n{notify}\n')
    return load_settings(root, environ=environ)


def test_nobody_is_told_unless_it_is_said_whom(tmp_path: Path) -> None:
    notify = load(tmp_path, "").notify
    assert notify.channels == ()
    assert notify.on == ("failure", "disable", "recovery")
    assert notify.repeat_after_seconds == 6 * 3_600


def test_a_webhook_comes_from_the_file_or_the_environment(tmp_path: Path) -> None:
    for found in (
        load(tmp_path, 'webhook = "${HOOK}"', HOOK=URL),
        load(tmp_path, "", TIDEGATE_NOTIFY__WEBHOOK=URL),
    ):
        assert found.notify.webhook is not None
        assert found.notify.webhook.get_secret_value() == URL
        assert found.notify.channels == ("webhook",)
        shown = repr(found) + str(found) + found.model_dump_json() + repr(found.notify)
        assert SECRET not in shown


def test_a_variable_that_is_not_set_is_no_webhook(tmp_path: Path) -> None:
    assert load(tmp_path, 'webhook = "${HOOK:-}"').notify.channels == ()


def test_a_command_is_a_program_and_its_arguments(tmp_path: Path) -> None:
    assert load(tmp_path, 'command = ["page", "$x; y"]').notify.command == ("page", "$x; y")
    assert load(tmp_path, 'command = "page me"').notify.command == ("page me",)


@pytest.mark.parametrize(
    "line",
    [
        f'webhook = "ftp://h/{SECRET}"',
        f'webhook = "{SECRET}"',
        f'webhook = "https:///{SECRET}"',
        f'webhook = "https://u:{SECRET}@h/x"',
        f'webhook = "https://h:99999/{SECRET}"',
        f'webhook = "https://[h/{SECRET}"',
        f'webhook = "https://h/{SECRET}\\r\\nX: y"',
        f'webhook = "https://h/{SECRET} x"',
        f'webhook = ["{SECRET}"]',
        f'webhook = "https://h/{SECRET}',
        "command = []",
        "command = [1]",
        'command = [""]',
        'on = ["fail"]',
        "on = 5",
        'repeat_after = "0s"',
    ],
)
def test_what_is_wrong_is_refused_without_showing_a_secret(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, line)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


BASE = '[project]\nname = "shop"\n'


def fail(root: Path, toml: str) -> list[str]:
    (root / "tidegate.toml").write_text(toml)
    with pytest.raises(SettingsError) as caught:
        load_settings(root, environ={})
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    "line",
    [
        f'[connections]\nx = "{SECRET}',
        f'[connections]\n"{SECRET}" x = 1',
        f'[connections]\nx = """\n{SECRET} = \\q',
        f'connections.x = "{SECRET}\n',
        f'[project]\ncontrol = "{SECRET}',
        f"[project]\nname = '''\n{SECRET} \0",
        f'[profile.p.connections]\nx = "{SECRET}',
        f'[conections]\nx = "postgres://a:{SECRET}@h',
        f'[conections]\nx = "host=h user={SECRET}',
        f'[spark.conf]\nx = "{SECRET}',
    ],
)
def test_a_malformed_line_that_may_hold_a_secret_is_not_shown(tmp_path: Path, line: str) -> None:
    assert fail(tmp_path, line)[0].startswith("tidegate.toml: line ")


@pytest.mark.parametrize(
    "toml",
    [
        f"[project]\nname = 5\ncontrol = 'host=h password={SECRET}'\n",
        f"[project]\nname = 'x'\ncontrol = ['{SECRET}']\n",
        f"{BASE}[connections]\nx = ['{SECRET}']\n",
        f"{BASE}connections = '{SECRET}'\n".replace(BASE, "") + BASE,
        f"{BASE}[connections]\nx = {{ url = '{SECRET}' }}\n",
        f"{BASE}[connections]\nx = {{ type = '{SECRET}' }}\n",
        f"{BASE}[connections]\nx = {{ type = 'postgres', url = 5, password = '{SECRET}' }}\n",
        f"{BASE}[connections]\n'postgres://a:{SECRET}@h' = 'embedded'\n",
        f"{BASE}[sync.a]\nsource = 'postgres://u:{SECRET}@h/d'\ntarget = 'a:b'\n",
        f"{BASE}[spark.conf]\nsecret = ['{SECRET}']\n",
    ],
)
def test_no_error_repeats_a_secret(tmp_path: Path, toml: str) -> None:
    fail(tmp_path, toml)


def test_nothing_printed_or_dumped_holds_a_secret(tmp_path: Path) -> None:
    toml = (
        BASE
        + f"""control = "postgres://u:{SECRET}@h/d"
[connections]
a = "${{A_URL}}"
b = "host=h password={SECRET}"
c = {{ type = "postgres", url = "postgres://u:{SECRET}@h/d" }}
d = {{ type = "iceberg", token = "{SECRET}" }}
[spark]
remote = "sc://h:1/;token={SECRET}"
"""
    )
    (tmp_path / "tidegate.toml").write_text(toml)
    settings = load_settings(tmp_path, environ={"A_URL": f"postgres://u:{SECRET}@h/d"})
    things = [settings, settings.project, settings.spark, settings.connections]
    connections = [settings.connection(name) for name in ("a", "b", "c", "d", "control")]
    for thing in (*things, *connections):
        assert SECRET not in repr(thing) + str(thing) + f"{thing}"
    for model in (settings, settings.project, settings.spark, *connections):
        assert SECRET not in str(model.model_dump()) + model.model_dump_json()
    assert settings.connection("d").options == {"token": SECRET}
