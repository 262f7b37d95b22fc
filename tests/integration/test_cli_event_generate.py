"""`tidegate init --template events` and `tidegate event generate`, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.commands import DONE, FAILED, USAGE, tidegate
from integration.conftest import MakePlace, Place

MODEL = """
[facts]
table = "w.facts"
partition = "at"
hashed = ["at"]
[facts.columns]
at = { type = "timestamptz", required = true }
"""


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    place = make_place(events={"connection": "warehouse"})
    (place.folder / "events.toml").write_text(MODEL)
    return place


def test_a_project_for_events_is_made_and_says_how_to_go_on(tmp_path: Path) -> None:
    done = tidegate(tmp_path, "init", "shop", "--template", "events")
    assert done.code == DONE
    for step in ("event generate --count 100000", "event run", "event status"):
        assert f"tidegate {step}" in done.out
    assert (tmp_path / "shop" / "views" / "mv_revenue_summary.sql").is_file()
    again = tidegate(tmp_path, "init", "shop", "--template", "events")
    assert again.code == USAGE
    assert "has a tidegate.toml already" in again.err


def test_what_lies_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "events.toml").write_text("mine")
    done = tidegate(tmp_path, "init", "--template", "events")
    assert done.code == USAGE
    assert "events.toml is in " in done.err
    assert [one.name for one in tmp_path.iterdir()] == ["events.toml"]
    assert (tmp_path / "events.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--template", "event"], "there is no template 'event'"),
        (["--template", "events", "--source", "postgresql://x/y"], "were both given"),
    ],
)
def test_a_template_that_cannot_be_made_is_refused(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = tidegate(tmp_path, "init", *arguments)
    assert done.code == USAGE
    assert said in done.err
    assert not list(tmp_path.iterdir())


def test_events_are_added_and_the_raw_table_is_made(place: Place) -> None:
    done = tidegate(place.folder, "event", "generate", "--count", "50", "--seed", "1")
    assert done.code == DONE, done.said
    assert done.out.startswith("added 50 events to warehouse:public.raw_events: ")
    assert done.out.endswith("; seed 1\n")
    assert place.target.value("SELECT count(*) FROM raw_events WHERE status = 'pending'") == 50
    again = tidegate(place.folder, "event", "generate", "--count", "50", "--seed", "1")
    assert "added 0 events to warehouse:public.raw_events (50 were there already)" in again.out
    # Without a seed they are new each time.
    for count in (60, 70):
        more = tidegate(place.folder, "event", "generate", "--count", "10")
        assert more.code == DONE
        assert place.target.value("SELECT count(*) FROM raw_events") == count


def test_a_project_without_events_says_how_to_have_some(make_place: MakePlace) -> None:
    done = tidegate(make_place().folder, "event", "generate")
    assert done.code == USAGE
    assert "this project has no events" in done.err
    assert "tidegate init --template events" in done.err


def test_a_wrong_model_is_refused_before_anything_is_made(place: Place) -> None:
    (place.folder / "events.toml").write_text(MODEL.replace('["at"]', '["then"]'))
    done = tidegate(place.folder, "event", "generate", "--json")
    assert done.code == USAGE
    assert 'events.toml: facts.hashed has "then"' in done.document["message"]
    assert place.target.value("SELECT to_regclass('raw_events')") is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--duplicates", "0.6", "--malformed", "0.5"],
        ["--count", "0"],
        ["--malformed", "1.5"],
        ["--until", "tomorrow"],
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(place: Place, arguments: list[str]) -> None:
    assert tidegate(place.folder, "event", "generate", *arguments).code == USAGE
    assert place.target.value("SELECT to_regclass('raw_events')") is None


def test_totals_that_cannot_be_written_are_told(place: Place) -> None:
    nowhere = ("--totals", "no/such/folder.json")
    done = tidegate(place.folder, "event", "generate", "--count", "5", "--seed", "2", *nowhere)
    assert done.code == FAILED
    assert "the events were added" in done.err
