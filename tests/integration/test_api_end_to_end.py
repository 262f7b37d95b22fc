"""From bad health to good over HTTP alone, with a real worker and Spark in between."""

from __future__ import annotations

from contextlib import closing

from integration.cached_lakes import ORDERS, cared_place, small_files
from integration.conftest import MakePlace
from integration.served import problem, serving
from tidegate.spark.session import SparkSessions

TABLE = "/tables/raw/orders"
WISH = {
    "actions": ["rewrite_data_files"],
    "options": {"rewrite_data_files": {"min_input_files": 2}},
}


def test_health_goes_from_bad_to_good_over_http(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = cared_place(make_place)
    small_files(place, ORDERS, files=22)
    project = place.open(warm_spark)
    with closing(project.context.databases), serving(project) as client:
        client.post("/tables/refresh")
        assert client.get(f"{TABLE}/health").json()["state"] == "warning"
        foretold = client.post(f"{TABLE}/maintenance", json=WISH | {"dry_run": True}).json()
        queued = client.post(f"{TABLE}/maintenance", json=WISH)
        job = queued.headers["location"]
        tag = client.get(job).headers["etag"]
        assert client.get(job).json()["state"] == "waiting"
        project.worker(kinds=["maintenance"], once=True).run()
        done = client.get(job, headers={"If-None-Match": tag}).json()
        assert (done["status"], done["error"]) == ("done", None)
        (action,) = done["actions"]
        assert (action["detail"]["files_before"], action["detail"]["files_after"]) == (22, 1)
        assert action["detail"]["predicted"]["after"]["files"] == 1
        assert foretold["predicted"]["rewrite_data_files"]["after"]["files"] == 1
        assert client.get(f"{TABLE}/health?live=true").json()["state"] == "good"
        history = client.get(f"{TABLE}/maintenance/history").json()["jobs"]
        assert [(one["status"], one["dry_run"]) for one in history] == [
            ("done", False),
            ("done", True),
        ]
        problem(client.post(f"{job}/cancel"), 409, "job-ended")
