"""Tasks: what is declared, what is refused and with which path, and the graph that follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from tidegate.config.sync import Mode
from tidegate.config.task import Step, SyncRun, TaskRun
from tidegate.core.errors import DeclarationError, SettingsError, TidegateError, UsageError
from tidegate.project import Project
from tidegate.tasks import graph as task_graph
from tidegate.tasks.graph import build_graph
from tidegate.tasks.runner import make_publish, read_payload

TOML = """
[project]
name = "shop"
[connections]
shop = "postgresql://localhost/shop"
warehouse = "postgresql://localhost/warehouse"
[sync.orders]
source = "shop:public.orders"
target = "warehouse:raw.orders"
[resources]
shop = 2
"""
HEAD = "from datetime import date, datetime, timedelta\nimport tidegate as tg\n"


def opened(folder: Path, pipelines: str) -> Project:
    (folder / "tidegate.toml").write_text(TOML, encoding="utf-8")
    (folder / "pipelines.py").write_text(HEAD + pipelines, encoding="utf-8")
    return Project.open(folder)


def refusal(folder: Path, pipelines: str) -> TidegateError:
    with pytest.raises(UsageError) as refused:
        assert opened(folder, pipelines).tasks
    return refused.value


def order(project: Project, *roots: Step, complete: tuple[str, ...] = ()) -> list[str]:
    found = build_graph(project.tasks, roots, lambda run: str(run) in complete)
    return [str(one) for one in found.order]


def run(project: Project, name: str, **parameters: object) -> TaskRun:
    return project.task_run(name, parameters)


CHAIN = """
@tg.task
def first(ctx, day: date): ...

@tg.task(requires=["orders", first])
def second(ctx, day: date, shop: str = "a"): ...

@tg.task(requires=[second, tg.needs(first, day="2026-01-01")])
def third(ctx, day: date): ...
"""


def test_a_task_is_declared_with_or_without_brackets(tmp_path: Path) -> None:
    tasks = opened(tmp_path, CHAIN).tasks
    assert list(tasks) == ["first", "second", "third"]
    assert tasks["second"].describe() == "second(day: date, shop: text)"
    assert tasks["first"].target is None


def test_all_that_can_be_declared_reaches_the_task(tmp_path: Path) -> None:
    task = opened(
        tmp_path,
        """
@tg.task(name="revenue", target="warehouse:marts.revenue", key=["day"], mode="delete_insert",
         retries=2, retry_delay="5 min", schedule="0 6 * * *", timezone="Europe/Berlin",
         catch_up="all", priority=9, resources=["shop"], disable_after=3)
def made(ctx, day: date): ...
""",
    ).tasks["revenue"]
    assert str(task.target) == "warehouse:marts.revenue"
    assert (task.key, task.mode) == (("day",), Mode.DELETE_INSERT)
    assert (task.retries, task.retry_delay_seconds) == (2, 300.0)
    assert (task.schedule, task.timezone, task.catch_up) == ("0 6 * * *", "Europe/Berlin", "all")
    assert (task.priority, task.resources, task.disable_after) == (9, ("shop",), 3)


def test_what_is_required_comes_first_and_gets_the_parameters_of_the_same_names(
    tmp_path: Path,
) -> None:
    project = opened(tmp_path, CHAIN)
    assert order(project, run(project, "third", day="2026-11-02")) == [
        "sync orders",
        "first(day=2026-11-02)",
        "second(day=2026-11-02, shop=a)",
        "first(day=2026-01-01)",
        "third(day=2026-11-02)",
    ]


def test_what_is_complete_needs_nothing(tmp_path: Path) -> None:
    project = opened(tmp_path, CHAIN)
    third = run(project, "third", day="2026-11-02")
    second = "second(day=2026-11-02, shop=a)"
    found = build_graph(project.tasks, [third], lambda one: str(one) == second)
    assert [str(one) for one in found.missing] == ["first(day=2026-01-01)", str(third)]
    assert order(project, third, complete=(str(third),)) == [str(third)]


def test_requirements_are_computed_from_the_parameters(tmp_path: Path) -> None:
    project = opened(
        tmp_path,
        """
def before(day):
    return [] if day <= date(2026, 11, 1) else [tg.needs("rolling", day=day - timedelta(1))]

@tg.task(requires=before)
def rolling(ctx, day: date): ...
""",
    )
    assert order(project, run(project, "rolling", day=date(2026, 11, 3))) == [
        "rolling(day=2026-11-01)",
        "rolling(day=2026-11-02)",
        "rolling(day=2026-11-03)",
    ]


def test_a_chain_of_requirements_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = opened(
        tmp_path,
        """
@tg.task(requires=lambda number: [tg.needs("count", number=number + 1)])
def count(ctx, number: int): ...
""",
    )
    monkeypatch.setattr(task_graph, "MOST_STEPS", 50)
    with pytest.raises(DeclarationError, match=r"count\(number=0\) requires more than 50 tasks"):
        order(project, run(project, "count", number=0))


def test_a_circle_through_computed_requirements_is_refused_with_its_path(tmp_path: Path) -> None:
    project = opened(
        tmp_path,
        """
@tg.task(requires=lambda n: [tg.needs("b", n=n)])
def a(ctx, n: int): ...

@tg.task(requires=[a])
def b(ctx, n: int): ...
""",
    )
    with pytest.raises(DeclarationError, match=r"a\(n=1\) → b\(n=1\) → a\(n=1\)"):
        order(project, run(project, "a", n=1))


def test_a_function_of_requirements_that_fails_is_named(tmp_path: Path) -> None:
    project = opened(tmp_path, "@tg.task(requires=lambda n: [1 / n])\ndef a(ctx, n: int): ...\n")
    with pytest.raises(DeclarationError, match=r"task a\(n=0\).*ZeroDivisionError"):
        order(project, run(project, "a", n=0))
    with pytest.raises(DeclarationError, match=r"neither a task nor a sync"):
        order(project, run(project, "a", n=1))


def test_a_sync_that_two_tasks_require_is_there_once(tmp_path: Path) -> None:
    project = opened(
        tmp_path,
        """
@tg.task(requires="orders")
def a(ctx): ...

@tg.task(requires=["orders", a])
def b(ctx): ...
""",
    )
    assert order(project, run(project, "b")) == ["sync orders", "a()", "b()"]
    assert order(project, SyncRun("orders"), run(project, "a")) == ["sync orders", "a()"]


@pytest.mark.parametrize(
    ("pipelines", "said"),
    [
        (
            "@tg.task(requires=['b'])\ndef a(ctx): ...\n"
            "@tg.task(requires=['c'])\ndef b(ctx): ...\n"
            "@tg.task(requires=['a'])\ndef c(ctx): ...\n",
            "in a circle: a → b → c → a",
        ),
        ("@tg.task(requires=['a'])\ndef a(ctx): ...\n", "in a circle: a → a"),
        ("@tg.task(requires=['ordrs'])\ndef a(ctx): ...\n", "a → ordrs: task a requires ordrs"),
        (
            "def plain(): ...\n@tg.task(requires=[plain])\ndef a(ctx): ...\n",
            "task a requires plain, which is neither a task nor a sync",
        ),
        (
            "@tg.task\ndef a(ctx, day: date): ...\n@tg.task(requires=[a])\ndef b(ctx): ...\n",
            "b → a: task a needs a value for day (date), which b does not have",
        ),
        (
            "@tg.task\ndef a(ctx, day: date): ...\n"
            "@tg.task(requires=[tg.needs(a, dya=1)])\ndef b(ctx, day: date): ...\n",
            "b → a: task a has no parameter 'dya'",
        ),
        (
            "@tg.task\ndef a(ctx, day: date): ...\n"
            "@tg.task(requires=[tg.needs(a, day='no')])\ndef b(ctx): ...\n",
            "b → a: task a: day = 'no'",
        ),
        (
            "@tg.task(requires=[tg.needs('orders', day=1)])\ndef a(ctx): ...\n",
            "requires orders with parameters, but orders is a sync",
        ),
        ("@tg.task(requires=7)\ndef a(ctx): ...\n", "task a: requires is 7"),
        (
            "@tg.task\ndef a(ctx): ...\n@tg.task(name='a')\ndef b(ctx): ...\n",
            "task a is declared twice in pipelines.py: lines 3 and 5",
        ),
        ("@tg.task\ndef orders(ctx): ...\n", "orders is declared twice: as a sync, and as a task"),
        (
            "@tg.task\ndef a(ctx, what: object): ...\n",
            "task a: parameter what has the type <class 'object'>, which is not kept as text",
        ),
        ("@tg.task\ndef a(ctx, day): ...\n", "task a: parameter day has no type"),
        ("@tg.task\ndef a(): ...\n", "task a takes nothing"),
        (
            "@tg.task(complete=lambda ctx: True)\ndef a(ctx, day: date): ...\n",
            "task a: complete cannot be called with the task's parameters",
        ),
        (
            "@tg.task(requires=lambda: [])\ndef a(ctx, day: date): ...\n",
            "task a: requires cannot be called with the task's parameters",
        ),
        (
            "@tg.task(target='warehouse:a.b', complete=lambda ctx: True)\ndef a(ctx): ...\n",
            "task a has a target and a function that says whether it is complete",
        ),
        ("@tg.task(key='id')\ndef a(ctx): ...\n", "task a has a key and no target"),
        (
            "@tg.task(schedule_parameter='dy')\ndef a(ctx, day: date): ...\n",
            "schedule_parameter is 'dy', which is none of its parameters",
        ),
    ],
)
def test_what_could_never_run_is_refused_with_its_path(
    tmp_path: Path, pipelines: str, said: str
) -> None:
    error = refusal(tmp_path, pipelines)
    assert isinstance(error, DeclarationError)
    assert said in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ("target='marts.revenue'", 'target is "marts.revenue"; expected "connection:schema.table"'),
        ("mode='mrege'", 'did you mean "merge"?'),
        ("retries=-1", "retries is -1; expected a whole number from 0 to 999"),
        ("schedule='never'", "schedule must be five fields"),
        ("schedule='0 6 * * *', timezone='Europe/Berln'", 'did you mean "Europe/Berlin"?'),
        ("retry_delay='soon'", "retry_delay"),
        ("priority=5000", "priority is 5000"),
        ("catch_up='some'", "catch_up"),
        ("name='no dots.here'", "is not a usable name for a task"),
    ],
)
def test_a_keyword_with_a_wrong_value_is_refused_as_a_setting_is(
    tmp_path: Path, keywords: str, said: str
) -> None:
    error = refusal(tmp_path, f"@tg.task({keywords})\ndef a(ctx): ...\n")
    assert isinstance(error, SettingsError)
    assert "pipelines.py: task." in error.message
    assert said in error.message


def test_the_same_parameters_are_the_same_run_whoever_wrote_them(tmp_path: Path) -> None:
    project = opened(tmp_path, CHAIN)
    task = project.tasks["second"]
    typed = task.run(task.signature.parse("second", {"day": "2026-11-02"}))
    given = run(project, "second", shop="a", day=date(2026, 11, 2))
    other = run(project, "second", day="2026-11-03")
    assert typed == given
    assert typed.update_id == given.update_id
    assert typed.update_id.startswith("shop.second-g1-")
    assert other.update_id != typed.update_id
    assert given.payload["parameters"] == {"day": "2026-11-02", "shop": "a"}


def test_another_target_is_another_identity(tmp_path: Path) -> None:
    ids = set()
    for target in ("warehouse:marts.a", "warehouse:marts.bb"):
        project = opened(tmp_path, f"@tg.task(target='{target}')\ndef a(ctx, n: int): ...\n")
        ids.add(run(project, "a", n=1).update_id)
    assert len(ids) == 2


def test_delete_insert_replaces_the_part_that_the_parameters_name(tmp_path: Path) -> None:
    text = "@tg.task(target='warehouse:m.r', mode='delete_insert'{})\n"
    text += "def a(ctx, day: date, top: int = 3): ...\n"
    found = run(opened(tmp_path, text.format("")), "a", day="2026-11-01")
    rules = make_publish(found, ["day", "total"]).rules
    assert rules.within == (("day", "2026-11-01"),)
    assert rules.replaces_part
    with pytest.raises(DeclarationError, match=r"none of its parameters \(day, top\) is a column"):
        make_publish(found, ["total"])
    keyed = run(opened(tmp_path, text.format(", key='id'")), "a", day="2026-11-01")
    assert not make_publish(keyed, ["id", "total"]).rules.replaces_part


def test_only_the_run_that_was_asked_for_may_remove_more(tmp_path: Path) -> None:
    project = opened(tmp_path, CHAIN)
    second, third = (run(project, name, day="2026-11-01") for name in ("second", "third"))
    graph = build_graph(
        project.tasks, [third, replace(second, allow_removal=True)], lambda _: False
    )
    assert [one.name for one in graph.order if one.allow_removal] == ["second"]
    assert "allow_removal" not in third.payload
    payload = replace(second, allow_removal=True).payload
    assert read_payload(project.tasks, "second", payload).allow_removal


def test_an_unknown_task_gets_the_nearest_right_name(tmp_path: Path) -> None:
    project = opened(tmp_path, CHAIN)
    with pytest.raises(UsageError) as refused:
        project.task_run("secnd", {})
    assert "did you mean second?" in str(refused.value)
    with pytest.raises(UsageError, match="needs a value for day"):
        project.task_run("second", {})
