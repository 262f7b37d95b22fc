"""`tidegate init`: a project that works at once, and secrets where they belong."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from integration.commands import DONE, FAILED, USAGE
from integration.conftest import Database
from integration.here import tidegate
from tidegate.admin.scaffold import _dotenv_value
from tidegate.config.files import parse_dotenv
from tidegate.core.relation import Endpoint, Relation
from tidegate.load.proposals import Proposal, propose
from tidegate.load.sources.resolve import resolve_source
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.embedded import EmbeddedServer
from tidegate.project import Project

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL)"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "my shop"
    folder.mkdir()
    return folder


def init(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    done = tidegate(folder, "init", "--json", *arguments, environment=environment)
    assert done.code == DONE, done.said
    found: dict[str, Any] = done.document
    return found


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def open_on(database: Database, folder: Path) -> Project:
    """The project on databases that are there: to start those of its own takes seconds."""
    warehouse = make_conninfo(database.conninfo, dbname="postgres")
    overrides = {"project.control": database.conninfo, "connections.warehouse": warehouse}
    return Project.open(folder, **overrides)


def test_without_a_source_a_small_project_is_made_that_says_how_to_go_on(home: Path) -> None:
    done = tidegate(home, "init")
    assert done.code == DONE
    for step in ("tidegate plan", "tidegate run --all", "tidegate verify --all"):
        assert step in done.out
    assert files(home) == [".gitignore", "tidegate.toml"]
    assert (home / ".gitignore").read_text() == ".env\n.tidegate/\n"
    project = Project.open(home)
    assert (project.name, project.syncs) == ("my-shop", {})
    # The example in its comments is right as well.
    text = (home / "tidegate.toml").read_text()
    for line in ("shop =", "[sync.", "source", "target", "key", "cursor", "lookback"):
        text = text.replace(f"# {line}", line)
    (home / "tidegate.toml").write_text(text)
    assert Project.open(home).sync("orders").lookback == "10 minutes"


def test_a_folder_is_made_and_a_name_may_be_chosen(home: Path) -> None:
    found = init(home, "a/b", "--name", "shop.eu")
    assert found["name"] == "shop.eu"
    assert Project.open(home / "a" / "b").name == "shop.eu"
    assert f"cd '{home / 'c'}'" in tidegate(home, "init", "c").out


def test_a_bad_name_and_an_existing_project_are_refused(home: Path, database: Database) -> None:
    for name in ("", "a b", "-x", "a/b", "x" * 64, 'x"\n[sync.evil]'):
        refused = tidegate(home, "init", f"--name={name}")
        assert refused.code == USAGE, name
        assert "not a usable project name" in refused.err
    assert files(home) == []
    (home / "tidegate.toml").write_text("mine")
    for arguments in ((), ("--source", database.conninfo)):
        refused = tidegate(home, "init", *arguments)
        assert refused.code == USAGE
        assert "has a tidegate.toml already" in refused.err
    assert files(home) == ["tidegate.toml"]
    assert (home / "tidegate.toml").read_text() == "mine"
    (home / "file").write_text("")
    assert "is not a folder" in tidegate(home, "init", "file").err


def test_a_source_becomes_a_project_that_can_be_planned_at_once(
    home: Path, server: EmbeddedServer, database: Database
) -> None:
    database.execute(
        ORDERS,
        "CREATE TABLE items (a int, b int, changed_at timestamp, PRIMARY KEY (a, b))",
        "CREATE TABLE notes (body text)",
    )
    name = database.value("SELECT current_database()")
    done = tidegate(home, "init", "--source", "-", stdin=f"{server.url(str(name))}\n")
    assert done.code == DONE
    assert "not synced: public.notes: no primary key" in done.out
    text = (home / "tidegate.toml").read_text()
    connection = str(name)
    assert tomllib.loads(text)["connections"] == {
        connection: f"${{{connection.upper()}_URL}}",
        "warehouse": "embedded:warehouse",
    }
    assert tomllib.loads(text)["sync"] == {
        "items": {
            "source": f"{connection}:public.items",
            "target": "warehouse:raw.items",
            "cursor": "changed_at",
            "null_cursor": "include",
        },
        "orders": {
            "source": f"{connection}:public.orders",
            "target": "warehouse:raw.orders",
            "cursor": "updated_at",
        },
    }
    assert '# key = ["a", "b"]' in text
    assert "# public.notes: no primary key" in text
    assert "postgresql://" not in text
    try:
        planned = tidegate(home, "plan")
        assert planned.code == DONE, planned.said
    finally:
        tidegate(home, "db", "stop")
        shutil.rmtree(home)


def test_the_url_is_kept_in_env_for_its_owner_only(
    home: Path, server: EmbeddedServer, database: Database
) -> None:
    url = server.url(str(database.value("SELECT current_database()")))
    (home / ".env").write_text("OTHER=1")
    (home / ".env").chmod(0o644)
    (home / ".gitignore").write_text("*.pyc\n/.tidegate")
    found = init(home, "--source", url)
    assert (home / ".env").read_text() == f"OTHER=1\n{found['variable']}='{url}'\n"
    assert (home / ".env").stat().st_mode & 0o777 == 0o600
    assert (home / ".gitignore").read_text() == "*.pyc\n/.tidegate\n.env\n"
    assert url not in (home / "tidegate.toml").read_text()
    assert files(home) == [".env", ".gitignore", "tidegate.toml"]


def test_a_variable_that_means_something_else_is_not_taken(home: Path, database: Database) -> None:
    name = str(database.value("SELECT current_database()")).upper()
    (home / ".env").write_text(f"{name}_URL=mine\n")
    environment = {f"{name}_URL_2": "theirs", f"{name}_URL_3": database.conninfo}
    found = init(home, "--source", database.conninfo, **environment)
    assert found["variable"] == f"{name}_URL_3"
    assert (home / ".env").read_text().startswith(f"{name}_URL=mine\n")


def test_a_source_called_tidegate_or_warehouse_does_not_clash(
    home: Path, server: EmbeddedServer
) -> None:
    found = init(home, "one", "--source", server.url("tidegate"))
    assert (found["connection"], found["variable"]) == ("tidegate", "SOURCE_TIDEGATE_URL")
    assert Project.open(home / "one").syncs == {}
    server.ensure_database("warehouse")
    found = init(home, "two", "--source", server.url("warehouse"))
    assert found["connection"] == "warehouse_source"


def test_a_source_that_cannot_be_reached_or_read_writes_nothing(
    home: Path, server: EmbeddedServer
) -> None:
    wrong = f"postgresql://postgres:hunter2@127.0.0.1:{server.port}/postgres"
    for url, code, message in (
        (wrong, FAILED, "password authentication failed"),
        ("postgresql://ana:hunter2@127.0.0.1:1/shop", FAILED, "cannot connect to the source"),
        ("postgresql://ana:hunter2/2@127.0.0.1/shop", USAGE, "must be written as %XX"),
        ("mysql://ana:hunter2@db/shop", USAGE, "--source is not a Postgres address"),
        ("jdbc:postgresql://db/shop?password=hunter2", USAGE, "leave out jdbc:"),
        ("", USAGE, "it is empty"),
        ("embedded:shop", USAGE, "the project that is being made"),
    ):
        refused = tidegate(home, "init", "new", f"--source={url}")
        assert refused.code == code, url
        assert message in refused.err
        assert "hunter2" not in refused.said
        assert files(home) == []


def test_what_is_not_the_user_s_own_table_is_left_out(home: Path, database: Database) -> None:
    database.execute(
        ORDERS,
        "CREATE VIEW report AS SELECT * FROM orders",
        "CREATE TABLE events (id int, updated_at date NOT NULL, PRIMARY KEY (id, updated_at))"
        " PARTITION BY RANGE (updated_at)",
        "CREATE TABLE events_old PARTITION OF events FOR VALUES FROM ('2020-01-01') TO"
        " ('2030-01-01')",
        "CREATE SCHEMA private",
        "CREATE TABLE private.secret (id int PRIMARY KEY, updated_at date NOT NULL)",
        "CREATE SCHEMA tidegate",
        "CREATE TABLE tidegate.watermark_log (id int PRIMARY KEY, updated_at date NOT NULL)",
    )
    role = f"reader_{database.value('SELECT current_database()')}"
    database.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'reader'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
    )
    try:
        source = database.conninfo.replace("user=postgres", f"user={role}")
        found = init(home, "--source", source.replace("password=''", "password=reader"))
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert list(Project.open(home).syncs) == ["events", "orders"]
    assert found["left_out"] == [
        {"table": "private.secret", "reason": "this role may not read it"},
        {
            "table": "public.report",
            "reason": "a view has no key of its own: declare key and cursor to sync it",
        },
    ]


def test_whatever_the_url_holds_is_read_back_from_env() -> None:
    odd = ["plain", "a b#c", "it's", "both ' and \"", "back\\slash 'n", "two\nlines\r", "$x ${y}"]
    for value in odd:
        assert parse_dotenv(f"A={_dotenv_value(value)}\n") == {"A": value}


def test_many_tables_become_one_section_that_can_be_planned_at_once(
    home: Path, database: Database
) -> None:
    for n in range(15):
        database.execute(
            f"CREATE TABLE line_{n} (id int PRIMARY KEY, updated_at timestamptz NOT NULL)",
            f'CREATE TABLE "List {n}" (code text PRIMARY KEY)',
        )
    database.execute("CREATE VIEW v AS SELECT 1 AS one", "CREATE TABLE keyless (a int)")
    found = init(home, "--source", database.conninfo)
    group = found["group"]
    assert group["source"] == f"{found['connection']}:public.*"
    assert group["target"] == "warehouse:raw.{table}"
    assert found["syncs"] == []
    assert [one["table"] for one in found["left_out"]] == ["public.v"]
    chosen = {one["name"]: (one["mode"], one["key"], one["cursor"]) for one in group["tables"]}
    name = group["name"]
    assert len(chosen) == 31
    assert chosen[f"{name}.line_3"] == ("merge", ["id"], "updated_at")
    assert chosen[f"{name}.List 3"] == ("replace", ["code"], None)
    assert chosen[f"{name}.keyless"] == ("replace", [], None)
    document = tomllib.loads((home / "tidegate.toml").read_text())
    assert document["sync"] == {name: {"source": group["source"], "target": group["target"]}}
    with open_on(database, home) as project:
        assert {sync.name for sync in project.expand()} == chosen.keys()


def test_many_tables_of_several_schemas_keep_their_schemas(home: Path, database: Database) -> None:
    for schema in ("sales", "stock"):
        database.execute(f"CREATE SCHEMA {schema}")
        for n in range(11):
            database.execute(f"CREATE TABLE {schema}.t{n} (id int PRIMARY KEY)")
    group = init(home, "--source", database.conninfo)["group"]
    assert group["source"].endswith(":*.*")
    assert group["target"] == "warehouse:{schema}.{table}"
    with open_on(database, home) as project:
        targets = {str(sync.target) for sync in project.expand()}
    assert {"warehouse:sales.t0", "warehouse:stock.t0"} <= targets


ODD = [
    "Order Items",
    'we"ird',
    "a.b",
    "select",
    "Größe",
    "日本",
    "x'; DROP TABLE y; --",
    "back\\slash",
    "hash#tag",
    "${HOME}",
    "$${HOME}",
    "{table}",
    "*",
    "100%s",
    "]\t[",
    " padded ",
    'x"]\n[sync.evil]\nsource = "a:b',
]


def test_odd_names_are_written_so_that_they_read_back_exactly(
    home: Path, database: Database
) -> None:
    for name in ODD:
        create = sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {} timestamptz NOT NULL)")
        database.execute(create.format(sql.Identifier(name), sql.Identifier("updated_at")))
    database.execute(
        'CREATE TABLE one ("we""ird ${HOME}" int NOT NULL UNIQUE, "Updated At" date NOT NULL)'
    )
    left_out = init(home, "--source", database.conninfo)["left_out"]
    spelled = {"one"} | {name for name in ODD if "\n" not in name and "\t" not in name}
    project = Project.open(home)
    assert {sync.source.relation.name for sync in project.syncs.values()} == spelled
    assert {sync.target.relation.name for sync in project.syncs.values()} == spelled
    assert "evil" not in project.syncs
    assert len(left_out) == len(ODD) - len(spelled) + 1
    one = project.sync("one")
    assert (one.key, one.cursor) == (('we"ird ${HOME}',), "Updated At")
    with database.connect() as session:
        for sync in project.syncs.values():
            cursor = resolve_source(session, sync).cursor
            assert cursor is not None
            assert cursor.name in ("updated_at", "Updated At")


def test_tables_that_are_called_alike_get_names_of_their_own(
    home: Path, database: Database
) -> None:
    for schema in ("sales", "Sales", "9"):
        database.execute(f'CREATE SCHEMA "{schema}"')
        for name in ("orders", "Orders", "Items"):
            database.execute(
                f'CREATE TABLE "{schema}"."{name}" (id int PRIMARY KEY, updated_at date NOT NULL)'
            )
    long = "x" * 63
    database.execute(
        f"CREATE TABLE sales.{long} (id int PRIMARY KEY, updated_at date NOT NULL)",
        f'CREATE TABLE "9".{long} (id int PRIMARY KEY, updated_at date NOT NULL)',
    )
    init(home, "--source", database.conninfo)
    syncs = Project.open(home).syncs
    assert len(syncs) == 11
    assert len({name.lower() for name in syncs}) == 11
    assert len({sync.target for sync in syncs.values()}) == 11
    assert Endpoint("warehouse", Relation("Sales", "Items")) in {
        sync.target for sync in syncs.values()
    }


ID = "id int PRIMARY KEY, "
CURSORS = {
    ID + "created_at timestamptz, updated_at timestamptz": "updated_at",
    ID + "created_at timestamptz, last_modified date": "last_modified",
    ID + "changed_at date, modified_at timestamptz": "modified_at",
    ID + "mtime timestamp, update_time timestamptz": "update_time",
    ID + '"updatedAt" timestamptz, birthday date': "updatedAt",
    ID + '"ModifiedDate" timestamp(0), due_at timestamptz': "ModifiedDate",
    ID + "updated_at bigint, created_at timestamptz": "updated_at",
    ID + "inserted_at timestamptz, password_changed_at date": "inserted_at",
    ID + "updated_at date, changed_at date UNIQUE": "changed_at",
    "serial bigint PRIMARY KEY, updated_at text": "serial",
    "serial bigint PRIMARY KEY, created_at timestamptz": "created_at",
    # What does not rise is not taken for a cursor.
    ID + "name text": None,
    ID + "version int NOT NULL": None,
    ID + "update_count int, expires_at timestamptz, birthday date": None,
    "serial bigint, b int, PRIMARY KEY (serial, b)": None,
    ID + "updated_at time": None,
}
# Without a primary key a unique index without NULLs will do.
KEYS = {
    "a int NOT NULL, b int NOT NULL, updated_at date, UNIQUE (a, b)": ("a", "b"),
    "a int NOT NULL UNIQUE, b int NOT NULL, updated_at date, UNIQUE (b, a)": ("a",),
    "a int UNIQUE, updated_at date": None,
    "a int, updated_at date": None,
}


def table(database: Database, columns: str) -> Proposal | str:
    """What is proposed for a table with these columns, or the reason against it."""
    database.execute("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns})")
    with database.connect() as session:
        described = describe_table(session, Relation("public", "t"))
    assert described is not None
    found = propose(described, frozenset({"serial"}))
    return found if isinstance(found, Proposal) else found.reason


def test_the_cursor_is_the_column_that_most_likely_rises(database: Database) -> None:
    for columns, cursor in CURSORS.items():
        found = table(database, columns)
        if cursor is None:
            assert isinstance(found, str), columns
            assert "no column that looks like a cursor" in found
        else:
            assert isinstance(found, Proposal), columns
            assert found.cursor == cursor


def test_the_key_and_what_the_owner_should_know_stand_beside_a_sync(database: Database) -> None:
    for columns, key in KEYS.items():
        found = table(database, columns)
        if key is None:
            assert found == "no primary key, and no unique index without NULLs", columns
        else:
            assert isinstance(found, Proposal), columns
            assert (found.key, found.is_primary_key) == (key, False)
    found = table(database, ID + "created_at timestamptz")
    assert isinstance(found, Proposal)
    assert found.nullable
    assert [note.split(":")[0] for note in found.notes] == [
        "created_at stays when a row changes",
        "no index begins with created_at",
    ]
