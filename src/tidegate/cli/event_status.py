"""`tidegate event status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.cli.moments import moment, span
from tidegate.cli.options import HERE, AsJson, Profile, ProjectFolder, open_project
from tidegate.cli.output import print_json, print_line, print_table
from tidegate.cli.translation import translated
from tidegate.model.figures import counted, in_bytes

if TYPE_CHECKING:
    from tidegate.insight.events import EventStatus, Throughput


def status(project: ProjectFolder = HERE, profile: Profile = None, as_json: AsJson = False) -> None:
    """Say how many events wait and since when, how fast they go, why some failed, and how the
    views stand.

    Example: tidegate event status
    """
    from tidegate.insight.events import read_status, status_document

    with open_project(project, profile) as opened, translated("reading the events"):
        found = read_status(opened.context)
    if as_json:
        print_json(status_document(found))
        return
    for line in _lines(found):
        print_line(line)
    if found.reasons:
        print_line("")
        rows = [
            (one.error, f"{one.events:,}", moment(one.last_at), one.example)
            for one in found.reasons
        ]
        print_table(("why events failed", "events", "last", "such as"), rows)
    if found.views and found.is_provisioned:
        print_line("")
        shown = [
            (
                one.view,
                moment(one.refreshed_at) if one.refreshed_at else "never",
                "" if one.rows is None else f"{one.rows:,}",
                "" if one.seconds is None else f"{one.seconds:.1f} s",
                "yes" if one.is_current else "no",
                one.error,
            )
            for one in found.views
        ]
        print_table(("view", "refreshed", "rows", "took", "shows all", "error"), shown)


def _lines(found: EventStatus) -> list[str]:
    place = f"{found.connection}:{found.raw} → {found.facts}"
    if not found.is_provisioned:
        return [place, "  nothing is there yet; make it with: tidegate event run"]
    waits = "nothing waits"
    if found.pending:
        since = f", the oldest for {span(found.lag_seconds or 0)}"
        waits = f"{counted(found.pending, 'event')} waiting{since}"
    return [
        place,
        f"  backlog    {waits}",
        f"  last hour  {_throughput(found.last_hour)}",
        f"  failed     {found.failed:,}" + (", see below" if found.failed else ""),
        f"  facts      {counted(found.partitions, 'month')}, {in_bytes(found.facts_bytes)}"
        + (f" ({found.first_partition} … {found.last_partition})" if found.partitions else ""),
    ]


def _throughput(done: Throughput) -> str:
    if not done.batches:
        last = moment(done.last_committed_at) if done.last_committed_at else "never"
        return f"nothing committed; last: {last}"
    rate = f", {done.per_second:,.0f} a second of work" if done.per_second else ""
    return (
        f"{done.done:,} done, {done.failed:,} failed, {done.facts:,} facts in "
        f"{counted(done.batches, 'commit')}{rate}"
    )
