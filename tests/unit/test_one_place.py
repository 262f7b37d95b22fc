"""What is written in one place only."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import tidegate

SOURCE = Path(tidegate.__file__).parent


def test_loggers_come_from_the_log_module() -> None:
    # Another one would print to standard output wherever structlog is not set up.
    users = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if "structlog" in file.read_text()
    }
    assert users == {"core/log.py", "cli/output.py"}


def test_no_option_of_a_command_is_written_twice() -> None:
    found = Counter(
        one
        for file in (SOURCE / "cli").rglob("*.py")
        for one in _options(ast.parse(file.read_text()))
    )
    assert len(found) > 10
    assert [one for one, count in found.items() if count > 1] == []


def _options(tree: ast.AST) -> list[str]:
    """Every option and argument with its help, as it was written."""
    return [
        ast.unparse(one)
        for one in ast.walk(tree)
        if isinstance(one, ast.Call)
        and ast.unparse(one.func) in ("typer.Option", "typer.Argument")
        and any(isinstance(part.value, ast.Constant) for part in one.keywords)
    ]
