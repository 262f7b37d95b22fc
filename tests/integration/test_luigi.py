"""Coming from Luigi: what its real package has done counts here, and the other way round."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date

from psycopg.conninfo import conninfo_to_dict

from integration.conftest import MakePlace, MakeProject, Place, open_without_spark
from tidegate.tasks.graph_runner import GraphReport

# A pipeline as Luigi's users write it: one table, a marker for each day and shop.
LUIGI = """
import os
import luigi
from luigi.contrib import postgres

class Orders(luigi.ExternalTask):
    day = luigi.DateParameter()
    def complete(self):
        return True

class Revenue(postgres.CopyToTable):
    day = luigi.DateParameter()
    shop = luigi.Parameter(default="north")

    host, port, database, user = (
        os.environ[name] for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER")
    )
    password = None  # in PGPASSFILE
    table = "marts.revenue"
    columns = [("day", "date"), ("shop", "text"), ("total", "int"), ("loader", "text")]

    def requires(self):
        return Orders(day=self.day)

    def rows(self):
        yield (self.day, self.shop, self.day.day * 10, "luigi")

class Week(luigi.WrapperTask):
    first = luigi.DateParameter()
    def requires(self):
        import datetime
        return [Revenue(day=self.first + datetime.timedelta(days=n)) for n in range(3)]
"""
# The same table and parameters here; what it requires must not be looked at for what Luigi did.
PIPELINES = """
from datetime import date
from pathlib import Path
import tidegate as tg

HERE = Path(__file__).parent

def note(text):
    with (HERE / "calls").open("a") as calls:
        calls.write(text + "\\n")

@tg.task
def orders(ctx, day: date):
    note(f"orders {day}")

@tg.task(
    target="warehouse:marts.revenue", mode="delete_insert", luigi="Revenue", requires=[orders]
)
def revenue(ctx, day: date, shop: str = "north"):
    note(f"revenue {day}")
    rows = [(day, shop, day.day * 10, "tidegate")]
    return ctx.spark.createDataFrame(rows, "day date, shop string, total int, loader string")
"""
FIRST, SECOND, THIRD = (date(2026, 11, day) for day in (1, 2, 3))
ROWS = "SELECT day, shop, total, loader FROM marts.revenue ORDER BY day, loader"


def run_luigi(place: Place, *arguments: str, **settings: str) -> str:
    """Run Luigi in a process of its own; what it said."""
    (place.folder / "shop_luigi.py").write_text(LUIGI)
    names = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER"}
    parts = conninfo_to_dict(place.target.conninfo)
    address = {names.get(part, f"PG{part.upper()}"): str(value) for part, value in parts.items()}
    path = os.pathsep.join([str(place.folder), os.environ.get("PYTHONPATH", "")])
    (place.folder / "luigi.cfg").write_text(
        "[postgres]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
    )
    done = subprocess.run(
        [sys.executable, "-m", "luigi", "--module", "shop_luigi", *arguments,
         "--local-scheduler", "--no-lock"],
        cwd=place.folder,
        env={**os.environ, **address, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This progress looks :)" in done.stderr, done.stderr
    return done.stderr


def states(report: GraphReport) -> dict[str, str]:
    assert report.exit_code == 0, [str(end.error) for end in report.failed]
    return {str(end.step): end.state.value for end in report.ends}


def calls(place: Place) -> list[str]:
    file = place.folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_what_luigi_did_is_skipped_unread_or_done_again_and_the_next_day_runs_here(
    make_project: MakeProject,
) -> None:
    project, place = make_project(databases=2, pipelines=PIPELINES)
    place.target.execute("CREATE SCHEMA marts")
    run_luigi(place, "Week", "--first", str(FIRST - (SECOND - FIRST)))
    before = place.target.execute(ROWS)
    assert [row[0] for row in before] == [date(2026, 10, 31), FIRST, SECOND]

    # Nobody can read a row meanwhile, nor is there a Spark.
    unready = open_without_spark(place)
    with place.target.connect() as locked, locked.transaction():
        locked.execute("LOCK TABLE marts.revenue")
        for day in (FIRST, SECOND):
            found = unready.run_task("revenue", day=day)
            assert states(found) == {f"revenue(day={day}, shop=north)": "complete"}
    assert calls(place) == []

    found = project.run_task("revenue", day=THIRD)
    assert states(found)[f"revenue(day={THIRD}, shop=north)"] == "done"
    assert calls(place) == [f"orders {THIRD}", f"revenue {THIRD}"]
    third = (THIRD, "north", THIRD.day * 10, "tidegate")
    assert place.target.execute(ROWS) == [*before, third]

    # Another shop is another run, in Luigi as well.
    other = project.run_task("revenue", day=FIRST, shop="south")
    assert states(other)[f"revenue(day={FIRST}, shop=south)"] == "done"

    # What was done here is done for Luigi too, and what stays there finds it.
    said = run_luigi(place, "Week", "--first", str(FIRST))
    assert "Did not run any tasks" in said, said
    assert place.target.value("SELECT count(*) FROM marts.revenue WHERE loader = 'luigi'") == 3
    assert place.target.value("SELECT count(*) FROM table_updates") == 5
    assert place.target.value("SELECT to_regclass('tidegate.table_updates')") is None

    # And what Luigi did can be done again here.
    run = project.task_run("revenue", {"day": FIRST})
    project.forget_task(run)
    assert states(project.run_graph([run]))[str(run)] == "done"
    first = f"SELECT loader FROM marts.revenue WHERE day = '{FIRST}' AND shop = 'north'"
    assert place.target.execute(first) == [("tidegate",)]
    assert place.target.execute(
        f"SELECT target_table FROM table_updates WHERE update_id = '{run.update_id}'"
    ) == [("marts.revenue",)]


def test_a_marker_table_of_another_name_and_place_is_honoured(make_place: MakePlace) -> None:
    place = make_place(
        databases=2, pipelines=PIPELINES, ledger={"marker_table": "etl.luigi_updates"}
    )
    place.target.execute("CREATE SCHEMA marts", "CREATE SCHEMA etl")
    run_luigi(place, "Revenue", "--day", str(FIRST), **{"marker-table": "etl.luigi_updates"})
    found = open_without_spark(place).run_task("revenue", day=FIRST)
    assert states(found) == {f"revenue(day={FIRST}, shop=north)": "complete"}
    assert calls(place) == []
