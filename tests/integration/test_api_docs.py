"""What docs/service.md tells people to type works, in that order."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from integration.cached_lakes import ORDERS, cared_place, small_files
from integration.conftest import MakePlace
from integration.served import serving

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def test_the_requests_of_the_page_are_answered(make_place: MakePlace) -> None:
    block = re.search(r"^```sh\n(curl .*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert block is not None
    lines = block.group(1).splitlines()
    assert len(lines) > 6
    place = cared_place(make_place)
    small_files(place, ORDERS, files=22)
    with place.open() as project, serving(project) as client:
        told = {}
        for line in lines:
            done = subprocess.run(
                ["sh", "-c", f"{line} --fail-with-body"],
                env={"TIDEGATE": str(client.base_url).rstrip("/"), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            told[line] = done.stdout
    answers = [json.loads(text) for text in list(told.values())[:-1]]
    assert answers[0]["read"] == 1
    assert answers[1]["tables"][0]["table"] == "lake:raw.orders"
    assert answers[2]["state"] == "warning"
    assert "rewrite_data_files" in answers[3]["predicted"]
    assert answers[4]["predicted"]["rewrite_data_files"]["after"]["files"] == 1
    queued = answers[5]["job_id"]
    assert [one["job_id"] for one in answers[6]["jobs"]] == [queued]
    assert [one["dry_run"] for one in answers[7]["jobs"]] == [False, True]
