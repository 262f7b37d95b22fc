"""`[notify]`: read as written, refused in words, and its address told to nobody."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tidegate.config import Settings, load_settings
from tidegate.core.errors import SettingsError

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
