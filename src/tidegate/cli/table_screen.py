"""How the tables of lakes look on the screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tidegate.cli.effects import effect_text
from tidegate.cli.moments import moment
from tidegate.cli.output import print_line
from tidegate.model.figures import counted, in_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.insight.table_health import TableHealth, TableRecommendation
    from tidegate.insight.tables import TableListing, TableView
    from tidegate.model.health import Health
    from tidegate.model.table_facts import TableFacts

COLOURS = {"good": "green", "warning": "yellow", "critical": "red", "unknown": "dim"}


def coloured(word: str, text: str | None = None) -> Any:
    """A state in its colour, on a terminal."""
    from rich.text import Text

    return Text(word if text is None else text, style=COLOURS.get(word, ""))


def say(word: str, text: str) -> None:
    """One line that begins with a state."""
    if not sys.stdout.isatty():
        print_line(f"{word}: {text}")
        return
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(coloured(word, f"{word}:"), text, markup=False)


def print_listing(listing: TableListing, health: Sequence[TableHealth]) -> None:
    """A table of tables, and what is stale below it."""
    from tidegate.cli.output import print_table

    rows = []
    for one in health:
        facts = one.table.facts
        rows.append(
            (
                one.table.target,
                coloured(one.word),
                "" if facts is None else f"{facts.records:,}",
                "" if facts is None else f"{facts.data.files:,}",
                "" if facts is None else in_bytes(facts.data.bytes),
                "" if facts is None else f"{facts.small.files:,}",
                "" if facts is None else f"{facts.snapshots:,}",
                _issues(one.health),
            )
        )
    if rows:
        print_table(
            ("table", "health", "rows", "files", "size", "small", "snapshots", "not well"), rows
        )
    else:
        print_line("no tables")
    for one in health:
        if one.table.is_stale and one.table.stale_reason not in _said(listing):
            print_line(f"{one.table.target}: {_staleness(one.table)}")
    for catalog in listing.catalogs:
        if catalog.stale_reason is not None:
            since = f" since {moment(catalog.stale_since)}" if catalog.stale_since else ""
            print_line(f"{catalog.catalog}: stale{since}: {catalog.stale_reason}")


def print_status(table: TableView) -> None:
    """What a table is made of, a line for each fact."""
    _print_head(table)
    if table.facts is not None:
        for name, value in _facts(table.facts):
            print_line(f"  {name}: {value}")


def print_health(found: Sequence[TableHealth]) -> None:
    """What is not well, the tables one after the other."""
    if not found:
        print_line("no tables")
    for one in found:
        _print_stale(one.table)
        if one.health is None:
            say("unknown", f"{one.table.target} was not read yet")
        elif one.health.is_good:
            say("good", str(one.table.target))
        for issue in () if one.health is None else one.health.issues:
            helps = "" if issue.action is None else f"; {issue.action.value} helps"
            say(issue.severity, f"{one.table.target}: {issue.message}{helps}")


def print_recommendation(found: TableRecommendation) -> None:
    """What should run and what not, each with its reason, and how to run it."""
    _print_stale(found.table)
    for one in found.recommendation.advices:
        if not one.run:
            reason = "" if one.reason == one.skip else f" ({one.reason})"
            print_line(f"{one.action.value}: not now: {one.skip}{reason}")
            continue
        effect = found.predicted.get(one.action)
        would = "" if effect is None else f"; would make {effect_text(effect)}"
        print_line(f"{one.action.value}: run: {one.reason}{would}")
    if found.recommendation.opted_out is not None:
        print_line(found.recommendation.opted_out)
    if found.order is not None:
        print_line(f"do it with: tidegate table maintain {found.table.target}")


def _facts(facts: TableFacts) -> list[tuple[str, str]]:
    def amount(one: Any) -> str:
        return f"{counted(one.files, 'file')}, {in_bytes(one.bytes)}"

    small = f"{amount(facts.small)}; together they would be about {facts.small_after:,}"
    return [
        ("location", facts.location),
        ("format", f"version {facts.format_version}"),
        ("rows", f"{facts.records:,} in data files, deleted ones included"),
        ("data", f"{amount(facts.data)} in {counted(facts.partitions, 'partition')}"),
        ("small", small if facts.small.files else "none"),
        ("target size", in_bytes(facts.target_file_bytes)),
        (
            "position deletes",
            f"{amount(facts.position_deletes)}, {facts.position_deleted_rows:,} rows",
        ),
        (
            "equality deletes",
            f"{amount(facts.equality_deletes)}, {facts.equality_deleted_rows:,} rows",
        ),
        ("dangling deletes", f"{counted(facts.dangling_delete_files, 'file')}"),
        ("manifests", f"{amount(facts.manifests)}, {facts.small_manifests:,} small"),
        ("snapshots", f"{facts.snapshots:,}, the oldest of {moment(facts.oldest_snapshot_at)}"),
        ("last written", moment(facts.snapshot_at) or "never"),
        ("branches and tags", f"{facts.branches:,} and {facts.tags:,}"),
    ]


def _print_head(table: TableView) -> None:
    how = "now" if table.live else f"as of {moment(table.as_of)}"
    print_line(f"{table.target}, {how}")
    _print_stale(table)


def _print_stale(table: TableView) -> None:
    if table.is_stale:
        print_line(f"{table.target}: {_staleness(table)}")


def _staleness(table: TableView) -> str:
    since = f" since {moment(table.stale_since)}" if table.stale_since else ""
    return f"stale{since}: {table.stale_reason}"


def _said(listing: TableListing) -> set[str | None]:
    return {one.stale_reason for one in listing.catalogs}


def _issues(health: Health | None) -> str:
    return "" if health is None else ", ".join(one.name for one in health.issues)
