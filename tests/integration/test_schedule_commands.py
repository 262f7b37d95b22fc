"""`tidegate schedule` and `tidegate scheduler --once` on a project with real declarations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from integration.commands import USAGE
from integration.conftest import MakePlace, Place
from integration.queued import CUSTOMERS, Desk, open_desk
from tidegate.control.limits import Used
from tidegate.model.job import JobStatus

ORDERS = {
    "name": "orders",
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
    "schedule": "*/5 * * * *",
    "timezone": "Europe/Berlin",
    "priority": 7,
    "resources": ["shop"],
}
WHOLE = {
    "name": "whole",
    "source": "shop:public.*",
    "target": "warehouse:copy.{table}",
    "schedule": "0 3 * * *",
    "catch_up": "all",
}


@pytest.fixture
def desk(make_place: MakePlace) -> Iterator[Desk]:
    with open_desk(make_place(ORDERS, CUSTOMERS, WHOLE, resources={"shop": 2})) as opened:
        yield opened


def look_back(place: Place, name: str, hours: float) -> None:
    """As if no scheduler had been there for so long."""
    since = datetime.now(UTC) - timedelta(hours=hours)
    place.control.execute(
        f"UPDATE tidegate_control.schedules SET seen_until = '{since.isoformat()}'"
        f" WHERE name = '{name}'"
    )


def jobs(place: Place) -> list[tuple[object, ...]]:
    return place.control.execute(
        "SELECT j.name, q.priority, q.limits, j.lock_at, j.unique_key"
        " FROM tidegate_control.jobs j JOIN tidegate_control.job_queue q USING (job_id) ORDER BY 1"
    )


def test_a_sync_with_a_schedule_is_queued_by_its_tick(desk: Desk) -> None:
    assert desk.run("scheduler", "--once", "--json").document["queued"] == 0
    look_back(desk.place, "orders", 1)
    assert "1 queued, 0 coalesced, 11 missed" in desk.run("scheduler", "--once").out
    assert jobs(desk.place) == [("orders", 7, ["shop"], "claim", "sync:orders")]
    assert desk.place.control.execute(
        "SELECT name, places FROM tidegate_control.resource_limits"
    ) == [("shop", 2)]
    look_back(desk.place, "orders", 1)
    assert desk.run("scheduler", "--once", "--json").document["queued"] == 0
    assert len(jobs(desk.place)) == 1


def test_a_group_is_queued_table_by_table(make_place: MakePlace) -> None:
    with open_desk(make_place(WHOLE)) as desk:
        desk.run("scheduler", "--once")
        look_back(desk.place, "whole", 48)
        done = desk.run("scheduler", "--once", "--json").document
        # On the second day each table's first run is unfinished.
        assert (done["queued"], done["coalesced"]) == (1, 1)
        assert [row[0] for row in jobs(desk.place)] == ["whole.customers", "whole.orders"]
        assert desk.place.control.execute(
            "SELECT outcome, detail FROM tidegate_control.schedule_ticks ORDER BY tick"
        ) == [("queued", "2 of 2 queued"), ("coalesced", "0 of 2 queued")]


def test_a_group_without_a_table_of_its_own_fails_and_says_why(desk: Desk) -> None:
    desk.run("scheduler", "--once")
    look_back(desk.place, "whole", 24)
    assert desk.run("scheduler", "--once", "--json").document["failed"] == 1
    assert jobs(desk.place) == []
    ((detail,),) = desk.place.control.execute("SELECT detail FROM tidegate_control.schedule_ticks")
    assert "everything that matches shop:public.* is left out" in detail


def test_the_list_says_when_each_is_due_and_what_became_of_it(desk: Desk) -> None:
    before = desk.run("schedule", "list", "--json").document
    assert [(one["name"], one["state"]) for one in before] == [("orders", "new"), ("whole", "new")]
    desk.run("scheduler", "--once")
    look_back(desk.place, "orders", 1)
    desk.run("scheduler", "--once")
    orders, whole = desk.run("schedule", "list", "--json").document
    assert (orders["state"], orders["outcome"], orders["job_status"]) == (
        "active",
        "queued",
        "pending",
    )
    upcoming = datetime.fromisoformat(orders["next"])
    assert timedelta(0) < upcoming - datetime.now(UTC) <= timedelta(minutes=5)
    assert (whole["outcome"], whole["catch_up"]) == (None, "all")
    said = desk.run("schedule", "list").out
    assert "*/5 * * * * Europe/Berlin" in said
    assert "queued, job pending" in said


def test_a_paused_schedule_queues_nothing_until_it_is_resumed(desk: Desk) -> None:
    # Before any scheduler has ever run, too.
    assert desk.run("schedule", "pause", "orders", "--reason", "a move").out == "orders: paused\n"
    assert "was paused already" in desk.run("schedule", "pause", "orders").out
    look_back(desk.place, "orders", 1)
    assert desk.run("scheduler", "--once", "--json").document["queued"] == 0
    assert "a move" in desk.run("schedule", "list").out
    assert desk.run("schedule", "list", "--json").document[0]["next"] is None
    assert desk.run("schedule", "resume", "orders", "--json").document == [
        {"name": "orders", "changed": True}
    ]
    assert "was not paused" in desk.run("schedule", "resume", "orders").out
    assert desk.run("scheduler", "--once", "--json").document["queued"] == 1


def test_what_failed_too_often_is_shown_as_disabled_and_enabled_by_hand(desk: Desk) -> None:
    for _ in range(5):
        desk.end(JobStatus.FAILED, "it broke")
    desk.run("scheduler", "--once")
    look_back(desk.place, "orders", 1)
    assert desk.run("scheduler", "--once", "--json").document["disabled"] == 1
    assert "DISABLED until" in desk.run("schedule", "list").out
    assert desk.run("schedule", "enable", "orders").out == "orders: enabled\n"
    assert "was not disabled" in desk.run("schedule", "enable", "orders").out
    desk.place.control.execute("DELETE FROM tidegate_control.schedule_ticks")
    look_back(desk.place, "orders", 1)
    assert desk.run("scheduler", "--once", "--json").document["queued"] == 1


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_name_without_a_schedule_is_refused_with_the_nearest(desk: Desk, command: str) -> None:
    done = desk.run("schedule", command, "ordres")
    assert done.code == USAGE
    assert "ordres has no schedule" in done.err
    assert "did you mean orders?" in done.err
    assert desk.run("schedule", command, "customers").code == USAGE


def test_a_worker_declares_the_places_there_are(desk: Desk) -> None:
    from tidegate.control.limits import Limits

    desk.project.worker()
    limits = Limits(desk.plane, desk.project.name)
    assert limits.used(desk.control) == [Used("shop", 2, 0)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": "every day"}, 'sync.orders.schedule is "every day"; expected five fields'),
        ({"schedule": "0 0 31 2 *"}, "sync.orders.schedule"),
        ({"timezone": "Europe/Berln"}, 'did you mean "Europe/Berlin"?'),
        ({"catch_up": "some"}, "sync.orders.catch_up"),
        ({"priority": 5000}, "a whole number from -1000 to 1000"),
        ({"resources": ["shpo"]}, "resources names shpo, of which nobody has said how many"),
    ],
)
def test_a_schedule_that_could_never_be_kept_is_refused(
    make_place: MakePlace, change: dict[str, object], words: str
) -> None:
    place = make_place(ORDERS | change, resources={"shop": 2})
    from integration.commands import tidegate

    done = tidegate(place.folder, "schedule", "list")
    assert done.code == USAGE
    assert words in done.said


def test_a_project_without_a_schedule_says_so(make_place: MakePlace) -> None:
    with open_desk(make_place(CUSTOMERS)) as desk:
        assert "nothing has a schedule" in desk.run("schedule", "list").out
