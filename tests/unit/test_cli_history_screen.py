"""How the history looks on a terminal of 80 columns, to the letter."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tidegate.cli.job.history import WIDTH, print_runs, print_trends, spark_lines, took_text
from tidegate.jobs.history.record import RunStatus, TaskRecord, Trend

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def trend(kind: str, name: str, *seconds: float, failed: int = 0) -> Trend:
    return Trend(kind, name, seconds, (0, 0, 0, 0, 0, 0, 0, failed), "done", NOW)


TRENDS = [
    trend("maintenance", "lake:raw.order_lines_of_the_shop", 90, 95, 100, 119, 122, 98),
    trend("publish", "warehouse:marts.daily_revenue", 3.2, 3.4, 4.1),
    trend("sync", "customers", *(12 + n % 7 for n in range(200))),
    trend("sync", "order_lines_archive_2019_to_2024_europe", *[5600] * 40, 16_200, failed=3),
    trend("sync", "order_lines_archive_2019_to_2024_america", 5600, 5700),
    trend("sync", "orders", *[0.875, 0.9, 0.92] * 20, 3.61, failed=1),
    trend("sync", "orders_eu", 0.45, 0.57, 0.429),
    trend("sync", "orders_us", failed=4),
    trend("sync", "prices", 77_220),
    trend("task", "export", *[0.004, 0.005] * 6),
    trend("task", "revenue", *[47.3, 58.0, 51.4] * 9, failed=1_234_567),
    trend("task", "x" * 120, *[180] * 30, 288),
    trend("vacuum", "warehouse:raw.orders", 400_000, 500_000),
]
SHOWN = """\
what                    runs     p50     p95     p99    last failed trend
maintenance lake:raw.order_lines_of_the_shop
                           6   1m39s   2m01s   2m02s   1m38s      0 ▁▂▃▇█▃
publish warehouse:marts.daily_revenue
                           3   3.4 s   4.0 s   4.1 s   4.1 s      0 ▁▃█
customers                200  15.0 s  18.0 s  18.0 s  15.0 s      0 █▁▂▃▅▆▇█▁▂▃▅
order_lines_archive_2019_to_2024_europe
                          41   1h33m   1h33m   3h19m   4h30m      3 ▁▁▁▁▁▁▁▁▁▁▁█
order_lines_archive_2019_to_2024_america
                           2   1h34m   1h35m   1h35m   1h35m      0 ▁█
orders                    61  900 ms  920 ms   2.0 s   3.6 s      1 ▁▁▁▁▁▁▁▁▁▁▁█
orders_eu                  3  450 ms  558 ms  568 ms  429 ms      0 ▂█▁
orders_us                  0       -       -       -       -      4
prices                     1  21h27m  21h27m  21h27m  21h27m      0 ▁
export                    12    5 ms    5 ms    5 ms    5 ms      0 ▁█▁█▁█▁█▁█▁█
revenue                   27  51.4 s  58.0 s  58.0 s  51.4 s  1.2 M ▁█▄▁█▄▁█▄▁█▄
xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
                          31   3m00s   3m00s   4m16s   4m48s      0 ▁▁▁▁▁▁▁▁▁▁▁█
vacuum warehouse:raw.orders
                           2   5.2 d   5.7 d   5.8 d   5.8 d      0 ▁█
runs: the last 200 that were done; failed: attempts in the last 7 days
order_lines_archive_2019_to_2024_eur… is slower than usual: 4h30m, usually 1h33m
orders is slower than usual: 3.6 s, usually 900 ms
xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… is slower than usual: 4m48s, usually 3m00s
"""


def test_a_dozen_trends_read_well_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_trends(TRENDS)
    assert capsys.readouterr().out == SHOWN


def test_no_line_is_longer_than_the_screen_and_no_figure_is_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_trends(TRENDS)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH == 80
    assert not any("…" in line[22:] for line in lines if line.startswith(" ")), "figures are whole"
    names = [line.split()[0] for line in lines]
    assert "order_lines_archive_2019_to_2024_america" in names, (
        "names that end apart are told apart"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1m00s"),
        (3599.4, "59m59s"),
        (3599.6, "1h00m"),
        (359_940, "99h59m"),
        (360_000, "4.2 d"),
    ],
)
def test_a_length_of_time_takes_seven_characters_at_most(seconds: float, text: str) -> None:
    assert took_text(seconds) == text
    assert len(text) <= 7


def test_what_spark_says_fits_the_screen() -> None:
    sizes = ("input", "output", "shuffle_read", "shuffle_write", "spilled", "peak_memory")
    found = {
        "jobs": 1_000,
        "shared_jobs": 12,
        "stages": 200,
        "tasks": 123_456,
        "failed_tasks": 7,
        "executor_run_ms": 40_000_000,
        "executor_cpu_ms": 39_000_000,
        "jvm_gc_ms": 754_000,
        "partial": True,
        **{f"{name}_bytes": 1023 * 1024 for name in sizes},
    }
    lines = spark_lines(found)
    assert lines == [
        "1,000 jobs, 200 stages, 123,456 tasks, 7 failed",
        "run 11h07m, CPU 10h50m, GC 12m34s, peak 1,023 KB, spilled 1,023 KB",
        "in 1,023 KB, out 1,023 KB, shuffle read 1,023 KB, written 1,023 KB",
        "some of it was the work of other runs, the last stages only",
    ]
    assert max(map(len, lines)) <= WIDTH - 13
    assert spark_lines({"jobs": 1, "stages": 1, "tasks": 1})[0] == "1 job, 1 stage, 1 task"
    assert spark_lines(None) == []


RUN = TaskRecord(
    id=UUID("01a1e208-0000-7000-8000-000000000001"),
    recorded_at=NOW,
    job_id=UUID(int=1),
    attempt_id="a",
    attempt=1,
    project="shop",
    kind="task",
    name="load",
    parameters={"day": "2026-11-04"},
    parameters_digest="d",
    host="vm",
    worker_id="w",
    status=RunStatus.DONE,
    submitted_at=NOW,
    started_at=NOW,
    finished_at=NOW + timedelta(seconds=2),
    rows=1234,
    bytes=None,
    metrics=None,
    error=None,
    traceback=None,
)
LISTED = """\
id            started (UTC)  status        took     rows  what
01a1e208-0000 11-16 00:00:00 done         2.0 s    1,234  load(day=2026-11-04)
02a1e208-0000 11-16 00:00:00 done         2.0 s    1,234  load
  day=2026-11-04, region=somewhere
03a1e208-0000 11-16 00:00:00 failed       2.0 s    1,234  load(day=2026-11-04)
  no such day
04a1e208-0000 11-16 00:00:00 done         2.0 s    1,234  orders
"""


def test_a_run_of_a_task_says_what_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [UUID(f"0{n}a1e208-0000-7000-8000-000000000001") for n in range(1, 5)]
    two = {"day": "2026-11-04", "region": "somewhere"}
    print_runs(
        [
            replace(RUN, id=ids[0]),
            replace(RUN, id=ids[1], parameters=two),
            replace(RUN, id=ids[2], status=RunStatus.FAILED, error="no such day\nand more"),
            replace(RUN, id=ids[3], kind="sync", name="orders", parameters={"x": 1}),
        ]
    )
    assert capsys.readouterr().out == LISTED
