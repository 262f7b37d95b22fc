"""Declared tasks, checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidegate.config import Settings
from tidegate.config.keywords import read_task
from tidegate.config.parameters import read_signature
from tidegate.config.sync import Group, Mode, Sync
from tidegate.config.task import Need, Requirement, Task, check_schedulable
from tidegate.core.errors import DeclarationError, UsageError
from tidegate.core.relation import Endpoint
from tidegate.declare import Declared
from tidegate.jobs.schedules import known_resources
from tidegate.load.plan import TaskPlan
from tidegate.load.sources.resolve import nearest
from tidegate.tasks.luigi import luigi_runs

Node = TypeVar("Node", bound=Hashable)


class Cycle(Exception):
    """Something requires itself; `path` begins and ends with it."""

    def __init__(self, path: Sequence[Hashable]) -> None:
        super().__init__(" → ".join(map(str, path)))
        self.path = tuple(path)


@dataclass(frozen=True, slots=True)
class Graph(Generic[Node]):
    """All nodes that some roots need, each after what it requires."""

    order: tuple[Node, ...]
    requires: Mapping[Node, tuple[Node, ...]]


def build(roots: Iterable[Node], requires: Callable[[Node], Iterable[Node]]) -> Graph[Node]:
    """Ask every node once what it requires; Cycle names the path.

    >>> build(["c"], {"c": ["b", "a"], "b": ["a"], "a": []}.__getitem__).order
    ('a', 'b', 'c')
    """
    found: dict[Node, tuple[Node, ...]] = {}
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        # By hand instead of by recursion: a chain may be longer than Python's stack.
        path: list[Node] = []
        open_: dict[Node, None] = {}
        pending: list[tuple[Node, bool]] = [(root, False)]
        while pending:
            node, is_left = pending.pop()
            if is_left:
                path.pop()
                del open_[node]
                done.add(node)
                order.append(node)
                continue
            if node in done:
                continue
            if node in open_:
                raise Cycle([*path[path.index(node) :], node])
            if node not in found:
                found[node] = tuple(dict.fromkeys(requires(node)))
            path.append(node)
            open_[node] = None
            pending.append((node, True))
            pending.extend((one, False) for one in reversed(found[node]))
    return Graph(tuple(order), found)


_FUNCTIONS = ("requires", "complete", "luigi")


def read_tasks(
    settings: Settings, declared: Iterable[Declared], syncs: Mapping[str, Sync | Group]
) -> dict[str, Task]:
    """Every task by name; refuses two of one name, missing requirements and cycles."""
    declared = list(declared)
    tasks = [one for one in declared if one.is_task]
    _refuse_twice(settings, tasks, syncs)
    names = _Names(
        {id(one.function): one.name for one in declared},
        {one.name: one for one in tasks},
        syncs,
    )
    found = {one.name: _make(settings, one, names) for one in tasks}
    for task in found.values():
        check_schedulable(task)
        for requirement in static_requirements(task):
            _refuse_unfit(task, requirement, found)
    _refuse_cycles(found)
    return found


def static_requirements(task: Task) -> Sequence[Requirement]:
    """What a task requires whatever its parameters are."""
    return () if callable(task.requires) else task.requires


class _Names:
    """Who is meant by what stands in a list of requirements."""

    def __init__(
        self,
        functions: Mapping[int, str],
        tasks: Mapping[str, Declared],
        syncs: Mapping[str, Sync | Group],
    ) -> None:
        self._functions = functions
        self._tasks = tasks
        self._syncs = syncs

    def is_declared(self, function: object) -> bool:
        """Whether a function is a task or a sync, as opposed to one that computes a list."""
        return id(function) in self._functions

    def resolve(self, task: str, given: object) -> tuple[Requirement, ...]:
        """The requirements of a task, each by its name."""
        one_alone = isinstance(given, str | Need) or callable(given)
        if not one_alone and not isinstance(given, list | tuple | set | frozenset):
            raise DeclarationError(
                f"task {task}: requires is {given!r}",
                'give a list of tasks and syncs, such as requires=["orders", revenue]',
            )
        parts = [given] if one_alone else list(given)  # type: ignore[call-overload]
        return tuple(self._resolve(task, part) for part in parts)

    def _resolve(self, task: str, part: object) -> Requirement:
        need = part if isinstance(part, Need) else Need(part)  # type: ignore[arg-type]
        if isinstance(need.of, str):
            name = need.of
        elif id(need.of) in self._functions:
            name = self._functions[id(need.of)]
        else:
            said = getattr(need.of, "__name__", repr(need.of))
            raise DeclarationError(
                f"task {task} requires {said}, which is neither a task nor a sync",
                "decorate it with @tg.task or @tg.sync, or name what you mean in quotes",
            )
        is_task = name in self._tasks
        if not is_task and name.partition(".")[0] not in self._syncs:
            known = [*self._tasks, *self._syncs]
            raise DeclarationError(
                f"{task} → {name}: task {task} requires {name}, which is not declared",
                nearest(name, known),
            )
        if not is_task and need.parameters:
            raise DeclarationError(
                f"task {task} requires {name} with parameters, but {name} is a sync",
                f'a sync has none: write "{name}"',
            )
        return Requirement(name, dict(need.parameters), is_task)


def _refuse_twice(
    settings: Settings, tasks: Sequence[Declared], syncs: Mapping[str, Sync | Group]
) -> None:
    pipelines = settings.project.pipelines
    seen: dict[str, Declared] = {}
    for one in tasks:
        before = seen.setdefault(one.name, one)
        if before is not one:
            lines = " and ".join(str(_line(each)) for each in (before, one))
            raise DeclarationError(
                f"task {one.name} is declared twice in {pipelines}: lines {lines}",
                'give one of them another name, such as name="…"',
            )
        if one.name in syncs:
            raise DeclarationError(
                f"{one.name} is declared twice: as a sync, and as a task in {pipelines}",
                "give one of them another name",
            )


def _line(declared: Declared) -> int:
    return declared.function.__code__.co_firstlineno


def _make(settings: Settings, declared: Declared, names: _Names) -> Task:
    name, values = declared.name, declared.values
    plain = {key: value for key, value in values.items() if key not in _FUNCTIONS}
    given = read_task(name, plain, settings.project.pipelines)
    signature = read_signature(name, declared.function)
    target = None if given.target is None else Endpoint.parse(given.target)
    if target is not None:
        settings.connection(target.connection)
    complete = values["complete"]
    _refuse_contradictions(name, target, given.key, complete)
    if complete is not None:
        _refuse_other_parameters(name, "complete", complete, signature.names, with_context=True)
    luigi = values["luigi"]
    if callable(luigi):
        _refuse_other_parameters(name, "luigi", luigi, signature.names, with_context=False)
    if given.schedule_parameter is not None and given.schedule_parameter not in signature.names:
        raise DeclarationError(
            f"task {name}: schedule_parameter is {given.schedule_parameter!r}, which is none of "
            "its parameters",
            nearest(given.schedule_parameter, signature.names),
        )
    return Task(
        project=settings.project.name,
        name=name,
        function=declared.function,
        signature=signature,
        target=target,
        key=given.key,
        mode=Mode(given.mode),
        requires=_requires(name, values["requires"], names, signature.names),
        complete=complete,
        luigi=None if luigi is None else luigi_runs(name, luigi, signature, target),
        retries=given.retries,
        retry_delay_seconds=given.retry_delay_seconds,
        schedule=given.schedule,
        timezone=given.timezone,
        catch_up=given.catch_up,
        schedule_parameter=given.schedule_parameter,
        priority=given.priority,
        resources=known_resources(settings, f"task {name}", given.resources),
        disable_after=given.disable_after,
        partitions=given.partitions,
    )


def _requires(
    task: str, given: Any, names: _Names, parameters: tuple[str, ...]
) -> Sequence[Requirement] | Callable[..., Sequence[Requirement]]:
    if not callable(given) or names.is_declared(given):
        return names.resolve(task, given)
    _refuse_other_parameters(task, "requires", given, parameters, with_context=False)

    def computed(**values: Any) -> Sequence[Requirement]:
        return names.resolve(task, given(**values))

    return computed


def _refuse_contradictions(
    name: str, target: Endpoint | None, key: tuple[str, ...] | None, complete: object
) -> None:
    if target is not None and complete is not None:
        raise DeclarationError(
            f"task {name} has a target and a function that says whether it is complete",
            "leave complete out: the marker beside the rows says so",
        )
    if target is None and key is not None:
        raise DeclarationError(
            f"task {name} has a key and no target", 'add target="connection:schema.table"'
        )


def _refuse_other_parameters(
    task: str,
    what: str,
    function: Callable[..., Any],
    parameters: tuple[str, ...],
    *,
    with_context: bool,
) -> None:
    """A function of the parameters must take just these."""
    import inspect

    signature = inspect.signature(function)
    context = ("ctx",) if with_context else ()
    try:
        signature.bind(*context, **dict.fromkeys(parameters))
    except TypeError as error:
        wanted = ", ".join((*context, *parameters))
        raise DeclarationError(
            f"task {task}: {what} cannot be called with the task's parameters: {error}",
            f"write it as a function of ({wanted})",
        ) from None


def _refuse_unfit(task: Task, requirement: Requirement, tasks: Mapping[str, Task]) -> None:
    """A required task must get a value for each of its parameters."""
    if not requirement.is_task:
        return
    required = tasks[requirement.name]
    try:
        check_parameters(task, requirement, required)
    except UsageError as error:
        raise DeclarationError(
            f"{task.name} → {required.name}: {error.message}", error.hint
        ) from None


def check_parameters(task: Task, requirement: Requirement, required: Task) -> None:
    """Refuse parameters that the required task does not have, and those that it lacks."""
    for name in requirement.parameters:
        if name not in required.signature.names:
            raise UsageError(
                f"task {required.name} has no parameter {name!r}",
                nearest(name, required.signature.names),
            )
    for one in required.signature.parameters:
        given = one.name in requirement.parameters or one.name in task.signature.names
        if one.required and not given:
            raise UsageError(
                f"task {required.name} needs a value for {one.describe()}, which {task.name} "
                "does not have",
                f"write tg.needs({required.name}, {one.name}=…), or give it a default",
            )
        if one.name in requirement.parameters:
            try:
                one.type.read(requirement.parameters[one.name])
            except ValueError as error:
                raise UsageError(
                    f"task {required.name}: {one.name} = {requirement.parameters[one.name]!r}",
                    f"expected {error}",
                ) from None


def _refuse_cycles(tasks: Mapping[str, Task]) -> None:
    def required(name: str) -> list[str]:
        return [one.name for one in static_requirements(tasks[name]) if one.is_task]

    try:
        build(tasks, required)
    except Cycle as cycle:
        raise DeclarationError(
            f"tasks require each other in a circle: {cycle}",
            "take one of these requirements out",
        ) from None


def plan_tasks(tasks: Iterable[Task]) -> tuple[TaskPlan, ...]:
    """Each task, in the order of the file; what could never run was refused when it was read."""
    return tuple(_plan(task) for task in tasks)


def _plan(task: Task) -> TaskPlan:
    return TaskPlan(
        task=task.name,
        parameters=tuple(one.describe() for one in task.signature.parameters),
        target=None if task.target is None else str(task.target),
        mode=None if task.target is None else task.mode.value,
        requires=tuple(_name(one) for one in static_requirements(task)),
        requires_computed=callable(task.requires),
        complete=_complete(task),
        schedule=None if task.schedule is None else f"{task.schedule} ({task.timezone})",
    )


def _name(requirement: Requirement) -> str:
    if not requirement.is_task:
        return f"sync {requirement.name}"
    given = ", ".join(f"{name}={value}" for name, value in requirement.parameters.items())
    return f"{requirement.name}({given})" if given else requirement.name


def _complete(task: Task) -> str:
    if task.luigi is not None:
        return "Luigi's marker beside its rows"
    if task.target is not None:
        return "a marker beside its rows"
    return "its complete function" if task.complete else "a marker in the control database"
