import pytest
from integration.commands import DONE, tidegate
from integration.test_lake_plan import orders, place
from integration.lakes import *
def test_x(place):
    fill_table(place, orders(range(1, 6)))
    print(tidegate(place.folder, "adopt", "orders").said)
    print(tidegate(place.folder, "adopt", "orders", "--from-target-max", "--dry-run", "--json").said)
    print(tidegate(place.folder, "adopt", "orders", "--from-target-max").said)
    print(tidegate(place.folder, "status").said)
    print(tidegate(place.folder, "plan").said)
    print(tidegate(place.folder, "watermark", "list").said)
    print(tidegate(place.folder, "watermark", "show", "orders").said)
    print(tidegate(place.folder, "watermark", "rewind", "orders", "2026-01-01 00:02+00", "--reason", "x").said)
    print(tidegate(place.folder, "watermark", "set", "orders", "2026-01-01 00:03+00", "--reason", "x").said)
    print(tidegate(place.folder, "marker", "list").said)
    print(tidegate(place.folder, "marker", "list", "lake").said)
    print(tidegate(place.folder, "run", "orders", "--queue").said)
    j=tidegate(place.folder, "job", "list", "--json")
    print(j.said)
    print(tidegate(place.folder, "job", "show", j.document["jobs"][0]["job_id"] if isinstance(j.document, dict) else j.document[0]["job_id"]).said)
    print(tidegate(place.folder, "db", "check").said)
    print(tidegate(place.folder, "doctor").said)
    assert 0
