"""What holds for all of the source: loggers, options, imports, SQL files and failpoints."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest
from psycopg import sql

import tidegate
from tidegate.core import failpoints
from tidegate.postgres.queries import script, statement, statements

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


ROOT = Path(tidegate.__file__).parent
SCRIPTS = (
    "ledger/schema",
    "ledger/iceberg_schema",
    "ledger/iceberg_catalog",
    "jobs/schema",
    "events/create_monthly_partition",
    "events/event_moment",
)
ALL = sorted(
    "/".join((file.relative_to(ROOT).parts[0], *file.relative_to(ROOT).with_suffix("").parts[2:]))
    for file in ROOT.glob("*/sql/**/*.sql")
)
FILES = [name for name in ALL if not name.startswith(SCRIPTS)]
PLACES = {
    "schema",
    "markers",
    "type",
    "picked",
    "claiming",
    "finishing",
    "limit",
    "columns",
    "conditions",
    "known",
    "steps",
    "side",
    "before",
    "raw",
    "staged",
    "log",
    "copied",
}
NAMED = [(file, name) for file in FILES for name in statements(file)]


def test_every_file_holds_statements() -> None:
    assert FILES
    assert all(statements(file) for file in FILES)


def test_every_statement_says_in_a_line_what_it_is_for() -> None:
    for file, name in NAMED:
        first, second = statements(file)[name].splitlines()[:2]
        assert re.match(r"-- [A-Z].*[^ ]$", first), (file, name)
        assert not second.startswith("-- name"), (file, name)


def test_every_place_for_a_name_is_filled() -> None:
    for file, name in NAMED:
        places = {field for _, field, _, _ in Formatter().parse(statements(file)[name]) if field}
        assert places <= PLACES, (file, name)
        parts = {place: sql.Identifier(f"the {place}") for place in places}
        text = statement(file, name, **parts).as_string(None)
        assert "{" not in text, (file, name)
        assert all(f'"the {place}"' in text for place in places), (file, name)


def test_every_statement_is_used_by_its_own_name() -> None:
    code = "".join(text.read_text(encoding="utf-8") for text in ROOT.rglob("*.py"))
    assert [name for _, name in NAMED if f'"{name}"' not in code] == []


def test_a_percent_sign_in_a_name_is_not_taken_for_a_parameter() -> None:
    text = statement("ledger/fences", "get_fence", schema=sql.Identifier("100%s"))
    assert '"100%%s".fences' in text.as_string(None)


def test_scripts_are_complete_once_the_schema_is_filled_in() -> None:
    for file in ("ledger/schema", "jobs/schema"):
        text = sql.SQL(script(file)).format(schema=sql.Identifier("x")).as_string(None)
        assert "{" not in text


def test_an_unknown_file_or_statement_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        statements("ledger/nothing")
    with pytest.raises(KeyError):
        statement("ledger/fences", "nothing")


def run(code: str, failpoint: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from tidegate.core.failpoints import reach\n{code}"],
        env={"TIDEGATE_FAILPOINT": failpoint, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_an_unknown_point_is_refused_and_the_known_ones_are_named() -> None:
    done = run("", "publish.aplied=kill")
    assert done.returncode == 1
    assert "unknown point 'publish.aplied'" in done.stderr
    assert "publish.applied" in done.stderr


def test_a_point_that_is_off_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", None)
    monkeypatch.setattr(failpoints, "_fire", lambda armed: pytest.fail("it fired"))
    for point in failpoints.POINTS:
        failpoints.reach(point)


def test_other_points_than_the_armed_one_are_passed_freely() -> None:
    done = run("[reach('job.claimed') for _ in range(9)]; print('alive')", "stage.done=kill")
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_kill_ends_the_process_at_the_point() -> None:
    done = run("reach('stage.done'); print('alive')", "stage.done=kill")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_kill_can_be_known_by_a_file(tmp_path: Path) -> None:
    done = run("reach('stage.done')", f"stage.done=kill:{tmp_path / 'killed'}")
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "killed").exists()


def test_a_trace_names_every_point_passed_and_stops_at_none(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = run("reach('job.claimed'); reach('stage.done'); print('alive')", f"*=trace:{trace}")
    assert done.stdout == "alive\n"
    assert trace.read_text().split() == ["job.claimed", "stage.done"]


def test_the_second_passage_can_be_the_one() -> None:
    done = run(
        "reach('stage.done'); print('once', flush=True); reach('stage.done')", "stage.done@2"
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "once\n")


def test_raise_raises() -> None:
    done = run("reach('stage.done')", "stage.done=raise")
    assert "FailpointHit: failpoint stage.done" in done.stderr


def test_wait_announces_itself_and_goes_on_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag"
    monkeypatch.setattr(failpoints, "_armed", ("stage.done", 1, f"wait:{flag}"))
    monkeypatch.setattr(failpoints, "_passages", 0)
    thread = threading.Thread(target=failpoints.reach, args=("stage.done",), daemon=True)
    thread.start()
    thread.join(0.05)
    while not flag.exists():
        thread.join(0.01)
    assert thread.is_alive()
    flag.unlink()
    thread.join(10)
    assert not thread.is_alive()


def test_every_point_is_reached_somewhere_and_none_is_misspelt() -> None:
    used = {
        point
        for file in SOURCE.rglob("*.py")
        if file.name != "failpoints.py"
        for point in re.findall(r'\breach\("([^"]+)"\)', file.read_text(encoding="utf-8"))
    }
    assert used == set(failpoints.POINTS)
