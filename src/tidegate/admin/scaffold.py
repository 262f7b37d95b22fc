"""Tidegate init."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from tidegate.config import SyncSettings
from tidegate.config.files import read_dotenv
from tidegate.config.sync import Sync
from tidegate.config.value_types import parse_location
from tidegate.core.errors import TidegateError, UsageError
from tidegate.core.relation import Endpoint, Relation, display
from tidegate.load.groups import (
    GroupTables,
    OtherDeclarations,
    expand_listing,
    list_group,
    make_group,
)
from tidegate.load.proposals import Proposal, SkippedTable, list_candidates, list_proposals
from tidegate.postgres.connection import Connection, check, connect

_FOLDER = ("templates", "events")
PROJECT_FILE = "tidegate.toml"


def project_text(name: str) -> str:
    """The text of tidegate.toml; `name` as TOML writes it."""
    return _root().joinpath(PROJECT_FILE).read_text(encoding="utf-8").format(name=name)


def other_files() -> dict[str, str]:
    """What lies beside tidegate.toml: names and texts."""
    return {path: text for path, text in sorted(_below(_root(), "")) if path != PROJECT_FILE}


def _root() -> Traversable:
    return files("tidegate.admin").joinpath(*_FOLDER)


def _below(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _below(item, f"{prefix}{item.name}/")
        elif item.name.endswith((".toml", ".sql")):
            found.append((prefix + item.name, item.read_text(encoding="utf-8")))
    return found


FILE = "tidegate.toml"
WAREHOUSE = "warehouse"
_PROJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MAX_NAME = 63
TEMPLATES = ("events",)

_HEAD = """\
# A Tidegate project. `tidegate plan` says what a run would do, `tidegate run --all` does it.

[project]
# Part of every identity: choose it once.
name = {name}
# The project's own Postgres, below .tidegate/; or the URL of another.
control = "embedded"

[connections]
"""
_EXAMPLE = """\
# shop = "${SHOP_URL}"   # a Postgres URL; put SHOP_URL into .env or the environment
warehouse = "embedded:warehouse"
# lake = { type = "iceberg" }   # tables as Iceberg files below .tidegate/, or a catalog of yours

# One section per table. `tidegate init --source URL` writes them for a whole database.
# [sync.orders]
# source = "shop:public.orders"
# target = "warehouse:raw.orders"
# key = ["id"]             # default: the primary key
# cursor = "updated_at"    # the column that rises with every change
# lookback = "10 minutes"  # for rows that were stamped before they were committed
"""


# From here on one section for all is shorter to read and keeps up with new tables.
_MANY = 20
_GROUP = """
# All {count} tables: each by its primary key and the column that rises with every change; one
# without such a column is loaded whole. `tidegate plan` prints the choice for every table.
[sync.{name}]
source = {source}
target = {target}
# exclude = ["tmp_*"]      # tables to leave out
# lookback = "10 minutes"  # for rows that were stamped before they were committed

# A table that needs something else is declared on its own, and the group leaves it out:
# [sync.another_name]
{one_source}{one_target}# cursor = "created_at"    # if its rows never change
"""


@dataclass(frozen=True, slots=True)
class ProposedSync:
    """One [sync.NAME] section."""

    name: str
    source: Endpoint
    target: Endpoint
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class ProposedGroup:
    """One [sync.NAME] section for many tables, and what it comes to now."""

    source: str
    target: str
    expansion: GroupTables


@dataclass(slots=True)
class Scaffold:
    """What `init` is about to write."""

    folder: Path
    name: str
    connection: str | None = None
    variable: str | None = None
    url: str | None = field(default=None, repr=False)
    syncs: list[ProposedSync] = field(default_factory=list)
    group: ProposedGroup | None = None
    left_out: list[SkippedTable] = field(default_factory=list)
    template: str | None = None
    beside: dict[str, str] = field(default_factory=dict)
    """further files of a template: names and texts"""


def propose_project(
    folder: Path, name: str | None, source: str | None, template: str | None = None
) -> Scaffold:
    """Decide what to write; nothing is written yet, and nothing is if the source cannot be read."""
    folder = folder.absolute()
    if (folder / FILE).exists() or (folder / FILE).is_symlink():
        raise UsageError(
            f"{folder} has a {FILE} already", "it is left as it is; choose another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "choose another one")
    if name is not None and not _PROJECT_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a usable project name",
            "1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit",
        )
    scaffold = Scaffold(folder, name or _project_name(folder.resolve().name))
    if template is not None:
        _take_template(scaffold, template, source)
    if source is not None:
        _read_source(scaffold, source)
    return scaffold


def write_project(scaffold: Scaffold) -> list[str]:
    """Write the files, tidegate.toml last and never over another; returns their names."""
    folder = scaffold.folder
    written: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _add_secret(folder / ".env", scaffold.variable, scaffold.url):
            written.append(".env")
        if _ignore(folder / ".gitignore", (".env", ".tidegate/")):
            written.append(".gitignore")
        for name, content in {**scaffold.beside, FILE: render(scaffold)}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(content)
    except FileExistsError as error:
        name = Path(error.filename or FILE).name
        raise UsageError(f"{folder} has a {name} already", "it is left as it is") from None
    except OSError as error:
        raise TidegateError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            "choose a folder that you may write to",
        ) from None
    return [FILE, *scaffold.beside, *written]


def render(scaffold: Scaffold) -> str:
    """The text of tidegate.toml."""
    if scaffold.template is not None:
        return project_text(text(scaffold.name))
    head = _HEAD.format(name=text(scaffold.name))
    if scaffold.connection is None:
        return head + _EXAMPLE
    parts = [
        head,
        f'{scaffold.connection} = "${{{scaffold.variable}}}"   # {scaffold.variable} is in .env\n',
        f'{WAREHOUSE} = "embedded:{WAREHOUSE}"\n',
        *(_section(sync) for sync in scaffold.syncs),
    ]
    if scaffold.group is not None:
        parts.append(_group_section(scaffold.connection, scaffold.group))
    if scaffold.left_out:
        parts.append("\n# Not synced:\n")
        parts += [comment(f"{one.relation}: {one.reason}") for one in scaffold.left_out]
    return "".join(parts)


def text(value: str) -> str:
    """A TOML string that the settings read back exactly: `${` would be a reference."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")


def comment(value: str) -> str:
    """A comment line; a name with a line break in it must not end it."""
    printable = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in value
    )
    return f"# {printable}\n"


def name_syncs(relations: Iterable[Relation]) -> dict[Relation, str]:
    """A usable and unique name per table; the schema is prefixed where tables are called alike."""
    listed = list(relations)
    plain = {relation: _sync_name(relation.name) for relation in listed}
    shared = [name.lower() for name in plain.values()]
    names: dict[Relation, str] = {}
    taken: set[str] = set()
    for relation in listed:
        name = plain[relation]
        if shared.count(name.lower()) > 1:
            name = _sync_name(f"{relation.schema}_{relation.name}")
        number, candidate = 2, name
        while candidate.lower() in taken:
            ending = f"_{number}"
            candidate, number = name[: _MAX_NAME - len(ending)] + ending, number + 1
        taken.add(candidate.lower())
        names[relation] = candidate
    return names


def _take_template(scaffold: Scaffold, template: str, source: str | None) -> None:
    if template not in TEMPLATES:
        raise UsageError(f"there is no template {template!r}", f"choose {', '.join(TEMPLATES)}")
    if source is not None:
        raise UsageError("--template and --source were both given", "give one of them")
    scaffold.template = template
    scaffold.beside = other_files()
    for name in scaffold.beside:
        if (scaffold.folder / name).exists():
            raise UsageError(
                f"{name} is in {scaffold.folder} already",
                "it is left as it is; choose another folder",
            )


def _read_source(scaffold: Scaffold, source: str) -> None:
    try:
        location = parse_location(source)
    except ValueError as error:
        raise UsageError("--source is not a Postgres address", f"write {error}") from None
    if location.conninfo is None:
        raise UsageError(
            "--source is the project that is being made", "give the URL of another database"
        )
    check(location.conninfo, "--source")
    with connect(location.conninfo, name="the source") as connection:
        scaffold.connection = _connection_name(connection.info.dbname)
        loadable = [one for one in list_candidates(connection) if one.is_loadable_table]
        if len(loadable) > _MANY:
            proposals: list[Proposal] = []
            schemas = {one.relation.schema for one in loadable}
            _propose_group(scaffold, connection, schemas)
        else:
            proposals, scaffold.left_out = list_proposals(connection)
    scaffold.url = location.conninfo
    scaffold.variable = _variable(
        scaffold.connection, scaffold.url, read_dotenv(scaffold.folder / ".env"), os.environ
    )
    # Everything lands in one schema, unless it comes from several and names could meet.
    schemas = {proposal.relation.schema for proposal in proposals}
    names = name_syncs(proposal.relation for proposal in proposals)
    for proposal in proposals:
        relation = proposal.relation
        target = Relation("raw", relation.name) if len(schemas) == 1 else relation
        scaffold.syncs.append(
            ProposedSync(
                names[relation],
                Endpoint(scaffold.connection, relation),
                Endpoint(WAREHOUSE, target),
                proposal,
            )
        )


def _propose_group(scaffold: Scaffold, connection: Connection, schemas: set[str]) -> None:
    assert scaffold.connection is not None
    schema = display(next(iter(schemas))) if len(schemas) == 1 else "*"
    source = f"{scaffold.connection}:{schema}.*"
    target = f"{WAREHOUSE}:{'raw' if len(schemas) == 1 else '{schema}'}.{{table}}"
    values = SyncSettings.model_validate({"source": source, "target": target})
    template = Sync(
        scaffold.name, scaffold.connection, Endpoint.parse(source), Endpoint.parse(target)
    )
    listing = list_group(connection, make_group(template, values), OtherDeclarations())
    expansion = expand_listing(connection, listing, {})
    scaffold.group = ProposedGroup(source, target, expansion)
    parts = {one.relation for one in list_candidates(connection) if one.is_part_of_another}
    scaffold.left_out = [one for one in expansion.left_out if one.relation not in parts]


def _group_section(name: str, group: ProposedGroup) -> str:
    syncs = group.expansion.syncs
    first = next((sync for sync in syncs if sync.cursor is None), syncs[0])
    example = text(str(first.source)), text(str(first.target))
    return _GROUP.format(
        name=name,
        count=len(syncs),
        source=text(group.source),
        target=text(group.target),
        one_source=comment(f"source = {example[0]}"),
        one_target=comment(f"target = {example[1]}"),
    )


def _section(sync: ProposedSync) -> str:
    proposal = sync.proposal
    key = f"key = [{', '.join(text(name) for name in proposal.key)}]"
    lines = [
        f"\n[sync.{sync.name}]\n",
        f"source = {text(str(sync.source))}\n",
        f"target = {text(str(sync.target))}\n",
        comment(f"{key}   (the primary key)") if proposal.is_primary_key else f"{key}\n",
        f"cursor = {text(proposal.cursor)}\n",
    ]
    if proposal.nullable:
        lines.append('null_cursor = "include"   # rows without a cursor are loaded too\n')
    return "".join(lines + [comment(note) for note in proposal.notes])


def _ascii(value: str) -> str:
    return unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode()


def _project_name(folder: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", _ascii(folder)).strip("-_.")
    return name[:_MAX_NAME] or "project"


def _sync_name(value: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", _ascii(value)).strip("_")
    return (name if name[:1].isalpha() else f"t_{name}" if name else "table")[:_MAX_NAME]


def _connection_name(database: str) -> str:
    name = _sync_name(database).lower()
    return f"{name[:55]}_source" if name in ("control", WAREHOUSE, "table") else name


def _variable(
    connection: str, url: str, dotenv: Mapping[str, str], environ: Mapping[str, str]
) -> str:
    """A variable that means this URL and nothing else, there or in the environment."""
    stem = connection.upper()
    if stem == "TIDEGATE" or stem.startswith("TIDEGATE_"):
        stem = f"SOURCE_{stem}"  # TIDEGATE_* are settings
    number, name = 2, f"{stem}_URL"
    while dotenv.get(name, url) != url or environ.get(name, url) != url:
        number, name = number + 1, f"{stem}_URL_{number}"
    return name


def _add_secret(path: Path, variable: str | None, url: str | None) -> bool:
    """Put the URL into .env, for its owner's eyes alone; what it holds already stays."""
    if variable is None or url is None:
        return False
    path = path.resolve()
    if read_dotenv(path).get(variable) == url:
        path.chmod(0o600)
        return False
    before = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    before += "" if before.endswith("\n") or not before else "\n"
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{before}{variable}={_dotenv_value(url)}\n")
    unfinished.replace(path)
    return True


def _dotenv_value(value: str) -> str:
    if "'" not in value and "\n" not in value and "\r" not in value:
        return f"'{value}'"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def _ignore(path: Path, entries: tuple[str, ...]) -> bool:
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    present = {line.strip().strip("/") for line in before.splitlines()}
    missing = [entry for entry in entries if entry.strip("/") not in present]
    if missing:
        before += "" if before.endswith("\n") or not before else "\n"
        path.write_text(before + "".join(f"{entry}\n" for entry in missing), encoding="utf-8")
    return bool(missing)
