"""Luigi's identities, compared with those of the real package."""

from __future__ import annotations

from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import luigi
import luigi.task
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidegate as tg
from tidegate.config.parameters import read_signature
from tidegate.config.task import Task
from tidegate.core.errors import DeclarationError, UsageError
from tidegate.core.relation import Endpoint
from tidegate.project import Project
from tidegate.tasks.luigi import luigi_id, luigi_runs


class Shop(Enum):
    NORTH = "n"
    SOUTH = "s"


class Probe(luigi.Task):
    """All that both sides can write."""

    task_namespace = "marts"
    day = luigi.DateParameter()
    shop = luigi.Parameter()
    count = luigi.IntParameter()
    share = luigi.FloatParameter()
    dry = luigi.BoolParameter()
    side = luigi.EnumParameter(enum=Shop)
    sides = luigi.EnumListParameter(enum=Shop)
    names = luigi.ListParameter()
    numbers = luigi.ListParameter()


def probe(
    ctx: Any,
    day: date,
    shop: str,
    count: int,
    share: float,
    dry: bool,
    side: Shop,
    sides: list[Shop],
    names: list[str],
    numbers: list[float],
) -> None: ...


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(lambda one: one + 0.0)
VALUES = st.fixed_dictionaries(
    {
        "day": st.dates(),
        "shop": TEXT,
        "count": st.integers(),
        "share": NUMBERS,
        "dry": st.booleans(),
        "side": st.sampled_from(Shop),
        "sides": st.lists(st.sampled_from(Shop), max_size=3),
        "names": st.lists(TEXT, max_size=3),
        "numbers": st.lists(NUMBERS, max_size=3),
    }
)


@given(TEXT, st.dictionaries(TEXT, TEXT, max_size=5))
def test_an_id_is_the_one_that_luigi_computes(family: str, parameters: dict[str, str]) -> None:
    assert luigi_id(family, **parameters) == luigi.task.task_id_str(family, parameters)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_typed_parameters_are_written_as_luigi_writes_them(values: dict[str, Any]) -> None:
    signature, target = read_signature("probe", probe), Endpoint.parse("warehouse:marts.probe")
    runs = luigi_runs("probe", "marts.Probe", signature, target)
    task = Task("shop", "probe", probe, signature, target, luigi=runs)
    run = task.run(signature.read("probe", values))
    assert run.update_id == Probe(**values).task_id
    assert run.payload["update_id"] == run.update_id


TOML = """
[project]
name = "shop"
[connections]
warehouse = "postgresql://localhost/warehouse"
"""
HEAD = "from datetime import date, datetime\nimport tidegate as tg\n"


def opened(folder: Path, declaration: str) -> Project:
    (folder / "tidegate.toml").write_text(TOML, encoding="utf-8")
    (folder / "pipelines.py").write_text(HEAD + declaration, encoding="utf-8")
    return Project.open(folder)


def test_a_function_says_what_luigi_called_a_run(tmp_path: Path) -> None:
    project = opened(
        tmp_path,
        '@tg.task(target="warehouse:marts.hourly", mode="append",\n'
        '  luigi=lambda hour, dry: tg.luigi_id("Hourly", hour=hour.strftime("%Y-%m-%dT%H")))\n'
        "def hourly(ctx, hour: datetime, dry: bool = False): ...\n",
    )

    class Hourly(luigi.Task):
        hour = luigi.DateHourParameter()
        dry = luigi.BoolParameter(significant=False)

    run = project.task_run("hourly", {"hour": "2026-11-01T08:00:00"})
    assert run.update_id == Hourly(hour=run.values["hour"]).task_id
    assert run.update_id == tg.luigi_id("Hourly", hour="2026-11-01T08")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ('luigi="A")\ndef a(ctx, day: date): ...', "task a has luigi and no target"),
        (
            'target="warehouse:a.b", luigi="A")\ndef a(ctx, hour: datetime): ...',
            "task a: Luigi has no one way to write hour (time)",
        ),
        (
            'target="warehouse:a.b", luigi="A")\ndef a(ctx, days: list[date]): ...',
            "task a: Luigi has no one way to write days (list of dates)",
        ),
        ('target="warehouse:a.b", luigi=7)\ndef a(ctx): ...', "task a: luigi is 7"),
        (
            'target="warehouse:a.b", luigi=lambda shop: "x")\ndef a(ctx, day: date): ...',
            "task a: luigi cannot be called with the task's parameters",
        ),
    ],
)
def test_what_could_not_be_found_again_is_refused(tmp_path: Path, declared: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        assert opened(tmp_path, f"@tg.task({declared}\n").tasks
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("returned", "said"), [("None", "returned None"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_function_that_gives_no_id_is_refused(tmp_path: Path, returned: str, said: str) -> None:
    project = opened(
        tmp_path,
        f'@tg.task(target="warehouse:a.b", luigi=lambda: {returned})\ndef a(ctx): ...\n',
    )
    with pytest.raises(DeclarationError, match=said):
        assert project.task_run("a", {}).update_id
