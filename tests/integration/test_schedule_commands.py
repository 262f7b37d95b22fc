"""`tidegate schedule` and `tidegate scheduler --once` on a project with real declarations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from integration.commands import USAGE
from integration.conftest import MakePlace
from integration.job_store import shared
from integration.queued import CUSTOMERS, Desk, open_desk, run_here
from tidegate.jobs.job import JobStatus

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


opened, desk = shared(
    lambda places: open_desk(places(ORDERS, CUSTOMERS, WHOLE, resources={"shop": 2}))
)


def scheduled(desk: Desk) -> dict[str, int]:
    """One look of a scheduler."""
    found: dict[str, int] = desk.run("scheduler", "--once", "--json").document
    return found


def look_back(desk: Desk, name: str, hours: float) -> None:
    """As if no scheduler had been there for so long."""
    since = datetime.now(UTC) - timedelta(hours=hours)
    desk.execute("UPDATE schedules SET seen_until = %s WHERE name = %s", since, name)


def jobs(desk: Desk) -> list[tuple[object, ...]]:
    return desk.execute(
        "SELECT j.name, q.priority, q.limits, j.lock_at, j.unique_key"
        " FROM jobs j JOIN job_queue q USING (job_id) ORDER BY 1"
    )


def test_a_sync_with_a_schedule_is_queued_by_its_tick_and_listed(desk: Desk) -> None:
    before = desk.run("schedule", "list", "--json").document
    assert [(one["name"], one["state"]) for one in before] == [("orders", "new"), ("whole", "new")]
    assert scheduled(desk)["queued"] == 0
    look_back(desk, "orders", 1)
    assert "1 queued, 0 coalesced, 11 missed" in desk.run("scheduler", "--once").out
    assert jobs(desk) == [("orders", 7, ["shop"], "claim", "sync:orders")]
    assert desk.execute("SELECT name, places FROM resource_limits") == [("shop", 2)]
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
    look_back(desk, "orders", 1)
    assert scheduled(desk)["queued"] == 0
    assert len(jobs(desk)) == 1
    # A group without a table of its own fails, and says why.
    look_back(desk, "whole", 24)
    assert scheduled(desk)["failed"] == 1
    assert len(jobs(desk)) == 1
    detail = desk.value("SELECT detail FROM schedule_ticks WHERE name = 'whole'")
    assert "everything that matches shop:public.* is left out" in detail


def test_a_group_is_queued_table_by_table(make_place: MakePlace) -> None:
    with open_desk(make_place(WHOLE)) as desk:
        scheduled(desk)
        look_back(desk, "whole", 48)
        done = scheduled(desk)
        # On the second day each table's first run is unfinished.
        assert (done["queued"], done["coalesced"]) == (1, 1)
        assert [row[0] for row in jobs(desk)] == ["whole.customers", "whole.orders"]
        assert desk.execute("SELECT outcome, detail FROM schedule_ticks ORDER BY tick") == [
            ("queued", "2 of 2 queued"),
            ("coalesced", "0 of 2 queued"),
        ]


def test_a_paused_schedule_queues_nothing_until_it_is_resumed(desk: Desk) -> None:
    # Before any scheduler has ever run, too.
    assert desk.run("schedule", "pause", "orders", "--reason", "a move").out == "orders: paused\n"
    assert "was paused already" in desk.run("schedule", "pause", "orders").out
    look_back(desk, "orders", 1)
    assert scheduled(desk)["queued"] == 0
    assert "a move" in desk.run("schedule", "list").out
    assert desk.run("schedule", "list", "--json").document[0]["next"] is None
    assert desk.run("schedule", "resume", "orders", "--json").document == [
        {"name": "orders", "changed": True}
    ]
    assert "was not paused" in desk.run("schedule", "resume", "orders").out
    assert scheduled(desk)["queued"] == 1


def test_what_failed_too_often_is_shown_as_disabled_and_enabled_by_hand(desk: Desk) -> None:
    for _ in range(5):
        desk.end(JobStatus.FAILED, "it broke")
    scheduled(desk)
    look_back(desk, "orders", 1)
    assert scheduled(desk)["disabled"] == 1
    assert "DISABLED until" in desk.run("schedule", "list").out
    assert desk.run("schedule", "enable", "orders").out == "orders: enabled\n"
    assert "was not disabled" in desk.run("schedule", "enable", "orders").out
    desk.execute("DELETE FROM schedule_ticks")
    look_back(desk, "orders", 1)
    assert scheduled(desk)["queued"] == 1


def test_a_name_without_a_schedule_is_refused_with_the_nearest(desk: Desk) -> None:
    for command in ("pause", "resume"):
        done = desk.run("schedule", command, "ordres")
        assert done.code == USAGE
        assert "ordres has no schedule" in done.err
        assert "did you mean orders?" in done.err
        assert desk.run("schedule", command, "customers").code == USAGE


def test_a_worker_declares_the_places_there_are(desk: Desk) -> None:
    desk.project.worker()
    found = desk.execute("SELECT project, name, places FROM resource_limits")
    assert found == [(desk.project.name, "shop", 2)]


def test_a_schedule_that_could_never_be_kept_is_refused(desk: Desk, places: MakePlace) -> None:
    for change, words in (
        ({"schedule": "every day"}, 'sync.orders.schedule is "every day"; expected five fields'),
        ({"schedule": "0 0 31 2 *"}, "sync.orders.schedule"),
        ({"timezone": "Europe/Berln"}, 'did you mean "Europe/Berlin"?'),
        ({"catch_up": "some"}, "sync.orders.catch_up"),
        ({"priority": 5000}, "a whole number from -1000 to 1000"),
        ({"resources": ["shpo"]}, "resources names shpo, of which nobody has said how many"),
    ):
        place = places(ORDERS | change, resources={"shop": 2}, beside=desk.place)
        done = run_here(place, "schedule", "list")
        assert (done.code, words in done.said) == (USAGE, True), done
    without = places(CUSTOMERS, beside=desk.place)
    assert "nothing has a schedule" in run_here(without, "schedule", "list").out
