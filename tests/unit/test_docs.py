"""The documentation keeps up with the code: commands, options, links and examples."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tidegate.cli.main import app
from tidegate.jobs.job import JobState, JobStatus
from tidegate.load.sources.exactness import documented

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
    ]
)
COMMANDS_PAGE = ROOT / "docs" / "reference" / "commands.md"
ARCHITECTURE = ROOT / "docs" / "concepts" / "architecture.md"
COMMON = "Common options"


def walk(command: Any, path: str = "tidegate") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, f"{path} {name}")


COMMANDS = dict(walk(typer.main.get_command(app)))


def options_of(command: Any) -> set[str]:
    """Every way to write an option of a command."""
    found = {"--help"}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            found.update(parameter.opts)
    return found


def sections_of(page: Path) -> dict[str, str]:
    """The text below each heading, up to the next one."""
    parts = re.split(r"^#+ (.+)\n", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options_in_tables(text: str) -> set[str]:
    cells = re.findall(r"^\| (`-[^|]*`) \|", text, flags=re.MULTILINE)
    return {option for cell in cells for option in re.findall(r"`(-[-\w]+)", cell)}


def shell_lines() -> Iterator[tuple[Path, str]]:
    """Every line of every shell block in the documentation."""
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.M | re.S):
            for line in block.splitlines():
                yield page, line


def invocations() -> list[tuple[str, list[str]]]:
    """Each call of tidegate in the documentation: where, and its words."""
    found: list[tuple[str, list[str]]] = []
    for page, line in shell_lines():
        words = shlex.split(line.replace("$(", " ").replace(")", " "), comments=True)
        starts = [place for place, word in enumerate(words) if word == "tidegate"]
        for start in starts:
            end = start + 1
            while end < len(words) and words[end] not in ("&&", "|", ";", "--", "tidegate"):
                end += 1
            found.append((f"{page.relative_to(ROOT)}: {line.strip()}", words[start + 1 : end]))
    return found


def test_every_command_is_documented() -> None:
    assert set(COMMANDS) <= set(sections_of(COMMANDS_PAGE))


def test_every_option_is_documented_with_its_command() -> None:
    sections = sections_of(COMMANDS_PAGE)
    common = options_in_tables(sections[COMMON])
    for path, command in COMMANDS.items():
        documented, existing = options_in_tables(sections[path]), options_of(command)
        assert existing - common == documented - common, path
        assert documented <= existing, path


LEAVES = [path for path, command in COMMANDS.items() if not hasattr(command, "commands")]


def test_every_command_has_an_example_on_its_page_and_in_its_help() -> None:
    sections = sections_of(COMMANDS_PAGE)
    for path in LEAVES:
        block = re.search(r"^```sh\n(.*?)^```", sections[path], flags=re.M | re.S)
        assert block is not None, path
        assert path in block.group(1), path
        assert "Example: " in (COMMANDS[path].help or ""), path


def test_every_command_has_the_common_options() -> None:
    for path in LEAVES:
        common = options_in_tables(sections_of(COMMANDS_PAGE)[COMMON])
        # These two make a project instead of working on one.
        if path in ("tidegate init", "tidegate demo"):
            common -= {"--project", "-C", "--profile"}
        assert common <= options_of(COMMANDS[path]), path


def test_every_call_of_the_command_in_the_documentation_is_one_that_exists() -> None:
    found = list(invocations())
    assert found
    for where, words in found:
        path = "tidegate"
        used: list[tuple[str, str]] = []
        for word in words:
            if f"{path} {word}" in COMMANDS:
                path = f"{path} {word}"
                continue
            if hasattr(COMMANDS[path], "default"):
                path = f"{path} {COMMANDS[path].default}"
            if word.startswith("-") and word != "-":
                used.append((path, word))
        assert path != "tidegate" or used, where
        for command, option in used:
            assert option in options_of(COMMANDS[command]), where


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if heading:
            slugs = {
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
                for title in sections_of(target)
            }
            assert heading in slugs, link


def test_the_overview_and_the_sites_menu_lead_to_every_page() -> None:
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    folders = {"start", "guides", "reference", "concepts"}
    assert {page.partition("/")[0] for page in pages} == folders
    overview = re.findall(r"\]\((\w+/[\w-]+\.md)\)", (docs / "index.md").read_text())
    menu = re.findall(r"^      - (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert set(overview) == set(menu) == pages
    assert len(menu) == len(pages)


def test_the_readme_has_five_links_into_the_documentation() -> None:
    links = re.findall(r"^- \[[^]]+\]\((\S+)\)", (ROOT / "README.md").read_text(), flags=re.M)
    assert len(links) == 5


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "search" / "search_index.json").exists()
    loaded = re.compile(r"<(?:script|img|iframe)[^>]* src=\"?(?:https?:)?//|<link[^>]*https?://")
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loaded.search(text), page
        assert "```" not in text, page
    for page in (ROOT / "docs").rglob("*.md"):
        assert not re.search(r"^ +```", page.read_text(), flags=re.M), f"{page}: a block in a list"
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_the_table_of_guarantees_is_the_rule_that_plan_goes_by() -> None:
    page = ROOT / "docs" / "concepts" / "watermarks.md"
    text = sections_of(page)["What is exact, and what is bounded"]
    _, _, table = text.partition("| what must hold | otherwise | instead |\n|---|---|---|\n")
    assert table.partition("\n\n")[0].splitlines() == documented()


def test_the_rooms_are_drawn_in_the_order_in_which_they_may_import() -> None:
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    drawn = re.findall(r"^│ ([\w |]+?) +│", sections_of(ARCHITECTURE)["The rooms"], flags=re.M)
    assert drawn == layers["contracts"][0]["layers"]
    rooms = {room for line in drawn for room in line.split(" | ")}
    package = ROOT / "src" / "tidegate"
    assert rooms >= {entry.parent.name for entry in package.glob("*/__init__.py")}


def test_the_life_of_a_job_is_drawn_with_every_status_that_it_can_have() -> None:
    drawing = sections_of(ARCHITECTURE)["A job's life"]
    lasting = set(re.findall(r"│ (\w+) │", drawing))
    ends = set(re.findall(r"▶ \[(\w+)\]", drawing))
    assert ends == {status.value for status in JobStatus if status.is_terminal}
    assert lasting == {status.value for status in JobStatus if not status.is_terminal} | {
        "cancelling"
    }


def test_every_state_that_a_job_is_shown_in_is_explained() -> None:
    text = sections_of(ROOT / "docs" / "guides" / "jobs.md")["What each state means"]
    rows = re.findall(r"^\| ([\w, ]+) \| (\w+) \|", text, flags=re.M)
    assert dict(rows[1:]).keys() == {state.value for state in JobState}
    assert {status for _, status in rows[1:]} == {status.value for status in JobStatus}


def test_architecture_is_short_and_names_files_that_exist() -> None:
    text = ARCHITECTURE.read_text()
    assert len(text.splitlines()) <= 250
    package = ROOT / "src" / "tidegate"
    rooms = {entry.parent.name for entry in package.glob("*/__init__.py")}
    for path in re.findall(r"`(\w+/[\w/]+(?:\.py)?)`", text):
        assert path.partition("/")[0] not in rooms or (package / path).exists(), path


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_pages_use_everyday_words(page: Path) -> None:
    unusual = r"\b(?:lest|whoever|foretell|foretold|thereof|told)\b"
    assert re.findall(unusual, page.read_text(), flags=re.I) == []
