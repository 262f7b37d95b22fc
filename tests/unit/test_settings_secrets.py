"""No secret is ever read in an error, a printed object or a dump."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tidegate.config import load_settings
from tidegate.core.errors import SettingsError

BASE = '[project]\nname = "shop"\n'
SECRET = "Hunter2Zebra"


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
