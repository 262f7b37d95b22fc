"""Importing tidegate and asking for help cost nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "psycopg", "fastapi", "pandas", "pyarrow", "adbc_driver_postgresql")

REPORT = """
import sys
print("loaded:", *sorted({{name.split(".")[0] for name in sys.modules}} & {{{heavy}}}))
"""
HELP = """
import sys
sys.argv = ["tidegate", {arguments}]
from tidegate.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded_after(code: str) -> list[str]:
    report = REPORT.format(heavy=", ".join(map(repr, HEAVY)))
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()[-1].split()[1:]


def test_importing_tidegate_loads_nothing_heavy() -> None:
    assert loaded_after("import tidegate\ntidegate.__version__") == []


@pytest.mark.parametrize("arguments", ['"--help"', '"run", "--help"', '"--version"'])
def test_help_loads_nothing_heavy(arguments: str) -> None:
    assert loaded_after(HELP.format(arguments=arguments)) == []


def test_opening_a_project_does_not_load_spark() -> None:
    assert "pyspark" not in loaded_after("import tidegate\ntidegate.Project\ntidegate.sync")


def test_the_pytest_plugin_loads_nothing_heavy() -> None:
    assert loaded_after("import tidegate.testing.plugin, tidegate.testing") == []


def test_an_unknown_name_is_refused_as_by_any_module() -> None:
    import tidegate

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tidegate.nothing
