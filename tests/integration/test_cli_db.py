"""`tidegate db`: the project's databases, started, reached, migrated and checked."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import FAST
from integration import commands
from integration.commands import DONE, FAILED, USAGE, Done
from integration.conftest import MakePlace, Place
from integration.here import tidegate
from tidegate.postgres.embedded import ROLE, EmbeddedServer

SECRET = "s3cr:t/%'pa ss"
QUOTED = "s3cr%3At%2F%25%27pa%20ss"
PROJECT = """
[project]
name = "shop"

[connections]
elsewhere = "${NOT_SET_ANYWHERE}"
warehouse = "embedded:warehouse"

[sync.orders]
source = "warehouse:public.orders"
target = "warehouse:raw.orders"
cursor = "id"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with a server of its own, in a folder whose name has to be quoted."""
    folder = tmp_path_factory.mktemp("home") / "it's a shop & more"
    folder.mkdir()
    (folder / "tidegate.toml").write_text(PROJECT)
    server = EmbeddedServer(folder / ".tidegate" / "postgres", FAST, role=ROLE)
    server.start()
    yield folder
    server.stop("immediate")
    shutil.rmtree(folder)


@pytest.fixture
def outside(make_place: MakePlace) -> Iterator[tuple[Place, str]]:
    """A project on databases elsewhere, one of them with a password in its URL."""
    place = make_place(
        {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "id"},
        installed=False,
    )
    database = place.target.value("SELECT current_database()")
    role = f"ana_{database}"
    place.target.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET.replace(chr(39), chr(39) * 2)}'"
    )
    port = place.target.value("SELECT current_setting('port')")
    url = f"postgresql://{role}:{QUOTED}@127.0.0.1:{port}/{database}?sslmode=disable"
    text = (place.folder / "tidegate.toml").read_text()
    text = text.replace("[connections]\n", f'[connections]\nlocked = "{url}"\n')
    (place.folder / "tidegate.toml").write_text(text)
    yield place, url
    place.target.execute(f"DROP ROLE {role}")


def db(folder: Path, *arguments: str) -> Done:
    return tidegate(folder, "db", *arguments)


def psql(folder: Path, *arguments: str, stdin: str = "") -> Done:
    """In a process of its own, which psql takes the place of."""
    return commands.tidegate(folder, "db", "psql", *arguments, stdin=stdin)


def write_project(folder: Path, connections: str, project: str = "") -> None:
    text = f'[project]\nname = "x"\n{project}\n[connections]\n{connections}\n'
    (folder / "tidegate.toml").write_text(text)


def bundled_psql(folder: Path) -> str:
    return str(EmbeddedServer(folder / "unused").bin_directory / "psql")


def ask(program: str, url: str, question: str, **environment: str) -> str:
    done = subprocess.run(
        [program, url, "-Atc", question],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_starting_stopping_and_doing_either_twice(home: Path, tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(PROJECT)
    never = db(tmp_path, "stop")
    assert (never.code, never.out) == (DONE, "the project's PostgreSQL was not running\n")
    running = db(home, "start", "--json").document
    assert (running["running"], running["started"]) == (True, False)
    # What it needs to be stopped must not depend on what the user's own code does.
    broken = home / "pipelines.py"
    broken.write_text("raise RuntimeError('broken')")
    assert db(home, "stop", "--json").document == {"running": False, "stopped": True}
    assert db(home, "stop", "--json").document == {"running": False, "stopped": False}
    started = db(home, "start")
    broken.unlink()
    assert started.code == DONE
    assert "the project's PostgreSQL started, on 127.0.0.1 port" in started.out


def test_the_url_of_the_embedded_database_works_in_psql_and_holds_no_password(home: Path) -> None:
    password = EmbeddedServer(home / ".tidegate" / "postgres").password()
    for name, database in (("warehouse", "warehouse"), ("control", "tidegate")):
        done = db(home, "url", name)
        assert done.code == DONE
        assert password not in done.said
        assert ask(bundled_psql(home), done.out.strip(), "SELECT current_database()") == database
    assert db(home, "url").out == db(home, "url", "warehouse").out


def test_the_url_of_another_database_leaves_its_password_out(outside: tuple[Place, str]) -> None:
    place, url = outside
    done = db(place.folder, "url", "locked")
    assert done.code == DONE
    assert done.out.strip() == url.replace(f":{QUOTED}", "")
    assert "left out: password" in done.err
    assert "tidegate db psql locked" in done.err
    program = bundled_psql(place.folder)
    assert ask(program, done.out.strip(), "SELECT 1", PGPASSWORD=SECRET) == "1"
    found = db(place.folder, "url", "locked", "--json").document
    assert (found["connection"], found["left_out"]) == ("locked", ["password"])
    assert SECRET not in str(found)


def test_every_way_to_write_an_address_is_printed_without_its_secrets(tmp_path: Path) -> None:
    for written, printed in (
        ("host=db user=ana password='a b' dbname=shop", "host=db user=ana dbname=shop"),
        (
            "postgresql://db/shop?user=ana&password=x&sslpassword=y&sslmode=disable",
            "postgresql://ana@db/shop?sslmode=disable",
        ),
        ("postgresql://ana:x@db/shop?sslpassword=y", "postgresql://ana@db/shop"),
        ("service=shop", "service=shop"),
    ):
        write_project(tmp_path, f'shop = "{written}"')
        done = db(tmp_path, "url", "shop")
        assert done.code == DONE
        assert sorted(done.out.strip().split(" ")) == sorted(printed.split(" "))
        assert ("left out" in done.err) == ("password" in written), written


def test_psql_is_run_on_the_connection_that_is_named(home: Path) -> None:
    question = "SELECT current_database()"
    assert psql(home, "control", "--", "-Atc", question).out == "tidegate\n"
    assert psql(home, stdin=f"{question};\n").out.count("warehouse") == 1
    # Its exit code is the command's.
    stopped = psql(home, "--", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin="SELEKT 1;\n")
    assert stopped.code == 3
    assert "syntax error" in stopped.err


def test_psql_gets_the_password_but_its_command_line_does_not(outside: tuple[Place, str]) -> None:
    place, _ = outside
    # The shell that psql starts looks at what its parent was called with.
    shell = ("-c", "\\! cat /proc/$PPID/cmdline", "-c", "SELECT current_user")
    done = psql(place.folder, "locked", "--", "-At", *shell)
    assert done.code == DONE
    assert "psql" in done.out
    assert "dbname=" in done.out
    assert "\nana_" in done.out.replace("\0", "\n")
    assert not any(part in done.said for part in ("s3cr", QUOTED, SECRET))


def test_what_psql_cannot_be_run_on_is_refused(home: Path, tmp_path: Path) -> None:
    write_project(tmp_path, 'shop = "host=db sslpassword=hunter2"')
    refused = db(tmp_path, "psql", "shop")
    assert refused.code == USAGE
    assert "sslpassword" in refused.err
    assert "hunter2" not in refused.said
    for command in ("url", "psql"):
        refused = db(home, command, "nowhere")
        assert refused.code == USAGE
        assert 'there is no connection "nowhere"' in refused.err
        assert "elsewhere, warehouse" in refused.err
        unset = db(home, command, "elsewhere")
        assert unset.code == USAGE
        assert "NOT_SET_ANYWHERE, which is not set" in unset.err


def test_check_and_migrate_tell_what_the_schemas_are_at(outside: tuple[Place, str]) -> None:
    folder = outside[0].folder
    fresh = db(folder, "check")
    assert fresh.code == FAILED
    assert "not made yet" in fresh.out
    assert "tidegate db migrate" in fresh.out
    first = db(folder, "migrate", "--json").document
    assert (first["before"], first["after"] >= 1) == (0, True)
    assert "is up to date, at version" in db(folder, "migrate").out
    checked = db(folder, "check")
    assert checked.code == DONE
    assert "up to date" in checked.out
    assert "the first load makes it" in checked.out
    outside[0].open().context.ledger("warehouse").ensure()
    control, ledger = db(folder, "check", "--json").document
    assert (control["connection"], control["fix"]) == ("control", None)
    assert ledger["state"] == "complete, markers in tidegate.table_updates"

    # One from the future, or half gone, is reported.
    place = outside[0]
    place.target.execute("DROP TABLE tidegate.fences")
    place.control.execute("INSERT INTO tidegate_control.schema_migrations VALUES (999)")
    checked = db(folder, "check")
    assert checked.code == FAILED
    assert "version 999, this Tidegate knows" in checked.out
    assert "incomplete, without fences" in checked.out
    refused = db(folder, "migrate")
    assert refused.code == FAILED
    assert "schema version 999" in refused.err


def test_check_names_a_database_that_cannot_be_reached(make_place: MakePlace) -> None:
    place = make_place(
        {"source": "shop:public.orders", "target": "warehouse:raw.orders", "cursor": "id"},
        connections={
            "shop": "host=127.0.0.1 port=1 user=x dbname=x",
            "warehouse": "host=127.0.0.1 port=1 user=x dbname=x password=hunter2",
        },
    )
    checked = db(place.folder, "check")
    assert checked.code == FAILED
    assert 'cannot connect to connection "warehouse"' in " ".join(checked.out.split())
    assert "hunter2" not in checked.said


def test_without_a_project_or_a_server_of_its_own_it_says_so(tmp_path: Path) -> None:
    for command in ("start", "stop", "url", "psql", "migrate", "check"):
        refused = db(tmp_path, command)
        assert refused.code == USAGE, command
        assert "no tidegate.toml in" in refused.err
        assert "tidegate init" in refused.err
        as_json = db(tmp_path, command, "--json")
        assert as_json.code == USAGE, command
        assert "no tidegate.toml in" in as_json.document["message"]
    url = "postgresql://db/shop"
    write_project(tmp_path, f'shop = "{url}"', f'control = "{url}"')
    refused = db(tmp_path, "start")
    assert refused.code == USAGE
    assert "uses no embedded database" in refused.err
    assert not (tmp_path / ".tidegate").exists()
    assert db(tmp_path, "stop").code == DONE


def test_uninstall_leaves_the_server_and_says_where_it_is(home: Path) -> None:
    tidegate(home, "db", "migrate")
    done = tidegate(home, "db", "uninstall", "--yes")
    assert done.code == DONE, done
    assert "table tidegate_control.jobs" in done.out
    assert f"stays, in {home / '.tidegate' / 'postgres'}" in done.out
    assert "elsewhere could not be searched" in done.err
    assert (home / ".tidegate" / "postgres").exists()
    assert "not made yet" in tidegate(home, "db", "check").out
