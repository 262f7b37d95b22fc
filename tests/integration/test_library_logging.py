"""What the library logs never reaches the standard output of the script that uses it."""

from __future__ import annotations

import os

from forked import Piped
from integration.conftest import MakePlace
from integration.orders import ORDERS

# A sync that fails as nobody expected, which is logged.
SCRIPT = """
from dataclasses import replace
import tidegate as tg

{setup}
with tg.open(".") as project:
    broken = replace(project.sync("orders"), refused=RuntimeError("out of luck"))
    print(len(project.run_many([broken]).failed), "failed")
"""
BASIC = "import logging; logging.basicConfig(filename='app.log', format='%(name)s %(message)s')"
STRUCTLOG = """
import structlog
structlog.configure(processors=[structlog.processors.JSONRenderer()])
"""
COMMAND = "from tidegate.cli.output import configure; configure(); configure()"


def test_a_scripts_output_is_its_own_and_what_is_logged_goes_where_it_says(
    make_place: MakePlace,
) -> None:
    folder = make_place(ORDERS).folder

    def logged(setup: str) -> str:
        """What such a script says on its standard error."""
        (folder / "script.py").write_text(SCRIPT.format(setup=setup))
        code, out, err = Piped([str(folder / "script.py")], os.environ, folder).communicate()
        assert (code, out) == (0, "1 failed\n"), err
        return err

    for setup in ("", STRUCTLOG):
        err = logged(setup)
        assert "event='run_failed' sync='orders'" in err
        assert "RuntimeError: out of luck" in err
    # An application that sets up logging gets the events.
    assert logged(BASIC) == ""
    text = (folder / "app.log").read_text()
    assert text.startswith("tidegate event='run_failed' sync='orders'\n")
    assert "RuntimeError: out of luck" in text
    # A command logs one line with time and level.
    (line,) = logged(COMMAND).splitlines()
    assert line.startswith("timestamp='20")
    assert "Z' level='error' event='run_failed' sync='orders'" in line
