"""The command line, called in the process of the test: one of its own takes most of a second."""

from __future__ import annotations

import logging
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TextIO

import pytest
import typer

from integration.commands import Done
from tidegate.cli import main as cli
from tidegate.core.log import LOGGER

# What Typer would make anew for each call.
_COMMAND = typer.main.get_command(cli.app)


def tidegate(
    folder: Path, *arguments: str, stdin: str = "", environment: dict[str, str] | None = None
) -> Done:
    """Call one command in `folder`, away from any terminal."""
    return _call(folder, arguments, StringIO(stdin), environment or {})


def answer_tidegate(folder: Path, answer: str, *arguments: str) -> Done:
    """Call one command whose standard input is a terminal, where somebody types this line."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        with os.fdopen(theirs, encoding="utf-8") as terminal:
            return _call(folder, arguments, terminal, {})
    finally:
        os.close(ours)


def _call(
    folder: Path, arguments: tuple[str, ...], stdin: TextIO, environment: dict[str, str]
) -> Done:
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patched, _logger_kept():
        patched.chdir(folder)
        for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
            patched.delenv(name)
        for name, value in environment.items():
            patched.setenv(name, value)
        patched.setattr(cli, "app", _COMMAND)
        patched.setattr(sys, "argv", ["tidegate", *arguments])
        patched.setattr(sys, "stdin", stdin)
        with redirect_stdout(out), redirect_stderr(err):
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
    return Done(code, out.getvalue(), err.getvalue())


@contextmanager
def _logger_kept() -> Iterator[None]:
    """A command sets the logger up for its own process, which this is not."""
    logger = logging.getLogger(LOGGER)
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate
