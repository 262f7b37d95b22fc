"""What is packed for Spark's workers, and what never is."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

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
