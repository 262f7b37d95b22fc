"""The dashboard below deploy/grafana: every query runs, as a role that may only read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql

from databases import Databases
from integration.conftest import Place
from integration.event_page import grants
from integration.raw_events import event_place, run_phases
from integration.shared_places import shared_places
from tidegate.events.generator import Generation, Totals, generate_events

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboards" / "events.json").read_text("utf-8"))
SOURCE = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "tidegate.yaml").read_text())
PROVIDER = yaml.safe_load((FOLDER / "provisioning" / "dashboards" / "tidegate.yaml").read_text())
PANELS = {one["title"]: one for one in DASHBOARD["panels"]}
VARIABLES = {one["name"]: one["query"] for one in DASHBOARD["templating"]["list"]}
NOW = datetime.now(UTC)
FROM, TO = NOW - timedelta(days=90), NOW
ROLE = "grafana_reader_of_tests"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def filled(
    kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, Totals]]:
    """Events of two months in all tables, and a role with the rights that the page gives it."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("grafana")) as make_place:
        place = event_place(make_place, more={"spark_from": 1_000_000})
        with place.open() as project:
            midnight = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
            made = generate_events(project.context, Generation(3_000, 7, midnight))
            run_phases(project)
            generate_events(project.context, Generation(50, 8, midnight, malformed=0.0))
        place.target.execute(grants().replace("grafana", ROLE))
        yield place, made.totals
        place.target.execute(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")


def expanded(text: str, chosen: dict[str, str]) -> sql.Composed:
    """A query as Grafana sends it: its macros and variables filled in."""
    span = sql.SQL("BETWEEN {} AND {}").format(f"{FROM:%FT%TZ}", f"{TO:%FT%TZ}").as_string(None)
    text = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 {span}", text)
    for name, value in chosen.items():
        text = text.replace(f"${{{name}:sqlstring}}", sql.Literal(value).as_string(None))
    assert "$" not in text, text
    return sql.SQL(text).format()  # type: ignore[arg-type]


def ask(place: Place, text: str, chosen: dict[str, str] | None = None) -> Rows:
    with place.target.connect(row_factory=psycopg.rows.dict_row) as connection:
        connection.execute(f"SET ROLE {ROLE}")
        connection.execute("SET default_transaction_read_only = on")
        return connection.execute(expanded(text, chosen or {})).fetchall()


def choices(place: Place) -> dict[str, str]:
    """The first choice of every variable."""
    return {name: next(iter(ask(place, text)[0].values())) for name, text in VARIABLES.items()}


def shown(filled: tuple[Place, Totals], title: str) -> Rows:
    place, _ = filled
    (target,) = PANELS[title]["targets"]
    return ask(place, target["rawSql"], choices(place))


def test_every_panel_shows_something_that_its_settings_speak_of(
    filled: tuple[Place, Totals],
) -> None:
    for title, panel in PANELS.items():
        rows = shown(filled, title)
        assert rows, title
        named = {one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]}
        named |= {panel["options"]["xField"]} if "xField" in panel["options"] else set()
        assert named <= set(rows[0]), title
        if panel["targets"][0]["format"] == "time_series":
            assert all(isinstance(one["time"], datetime) for one in rows), title
            assert rows == sorted(rows, key=lambda one: one["time"]), title
        if panel["type"] == "stat":
            assert [len(one) for one in rows] == [1], title
        # Grafana takes a numeric for text.
        kinds = {type(value).__name__ for one in rows for value in one.values()}
        assert "Decimal" not in kinds, title


def test_the_figures_are_those_of_the_events(filled: tuple[Place, Totals]) -> None:
    place, totals = filled
    assert shown(filled, "Events waiting") == [{"waiting": 50}]
    assert 0 < shown(filled, "Oldest waiting")[0]["age"] < 600
    assert shown(filled, "Events failed") == [{"failed": totals.malformed.total()}]
    assert shown(filled, "Views that fail") == [{"failing": 0}]
    currency = choices(place)["currency"]
    (net,) = shown(filled, "Net revenue, $currency")
    assert net["net"] == pytest.approx(float(totals.net_revenue[currency]))
    by_day = [one for one in shown(filled, "Net revenue a day") if one["metric"] == currency]
    assert sum(one["net"] for one in by_day) == pytest.approx(net["net"])
    steps = shown(filled, "Funnel: $funnel")
    assert [one["step"][:2] for one in steps] == [f"{n + 1}." for n in range(len(steps))]

    place.target.execute(
        "UPDATE analytics.mv_refresh_log SET error = 'boom', failed_at = now()"
        " WHERE mv_name = 'analytics.mv_revenue_summary'"
    )
    assert shown(filled, "Views that fail") == [{"failing": 1}]
    refreshes = shown(filled, "Refreshes")
    assert [one["error"] for one in refreshes if one["error"]] == ["boom"]


def test_its_role_sees_nothing_of_what_events_say(filled: tuple[Place, Totals]) -> None:
    place, _ = filled
    for text in (
        "SELECT body FROM public.raw_events",
        "SELECT * FROM warehouse.fact_events",
        "SELECT * FROM warehouse.dim_users",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(place, text)


def test_the_files_fit_together_and_no_secret_is_written_down() -> None:
    text = json.dumps(DASHBOARD).replace("\\n", " ")
    for name in (
        "mv_conversion_funnels",
        "mv_retention_cohorts",
        "mv_revenue_summary",
        "mv_experiment_results",
        "mv_refresh_log",
    ):
        assert f"FROM analytics.{name}" in text, name
    (source,) = SOURCE["datasources"]
    used = set(re.findall(r'"datasource": (\{[^}]*\})', text))
    assert used == {json.dumps({"type": source["type"], "uid": source["uid"]})}
    assert source["secureJsonData"] == {"password": "${TIDEGATE_EVENTS_PASSWORD}"}
    assert PROVIDER["providers"][0]["options"]["path"] == "/etc/grafana/dashboards/tidegate"
    ids = [one["id"] for one in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    # No panel lies on another.
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        taken |= cells
