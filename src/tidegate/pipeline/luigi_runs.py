"""Tasks that Luigi has run before: under which update_id it has which run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.errors import DeclarationError
from tidegate.model.luigi import luigi_id
from tidegate.model.parameter import Parameter, Signature
from tidegate.model.relation import Endpoint

_BY_HAND = "a function of the parameters that returns the update_id"


def luigi_runs(
    task: str, given: object, signature: Signature, target: Endpoint | None
) -> Callable[..., str]:
    """What Luigi calls a run: by the name of its class, or by a function that says so."""
    if target is None:
        raise DeclarationError(
            f"task {task} has luigi and no target, and Luigi's markers are those of tables",
            'add target="connection:schema.table", or say with complete whether it is done',
        )
    if callable(given):
        return _told(task, given)
    if not isinstance(given, str) or not given.strip():
        raise DeclarationError(
            f"task {task}: luigi is {given!r}",
            f'give the name of the class, such as luigi="Revenue", or {_BY_HAND}',
        )
    for one in signature.parameters:
        _refuse_ambiguous(task, one)

    def computed(**values: Any) -> str:
        return luigi_id(given, **_texts(signature, values))

    return computed


def _texts(signature: Signature, values: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in signature.parameters:
        assert one.type.luigi is not None
        found[one.name] = one.type.luigi(values[one.name])
    return found


def _refuse_ambiguous(task: str, parameter: Parameter) -> None:
    if parameter.type.luigi is None:
        raise DeclarationError(
            f"task {task}: Luigi has no one way to write {parameter.describe()}",
            f"give luigi {_BY_HAND}, such as luigi=lambda hour: "
            'tg.luigi_id("Hourly", hour=hour.strftime("%Y-%m-%dT%H"))',
        )


def _told(task: str, function: Callable[..., Any]) -> Callable[..., str]:
    def told(**values: Any) -> str:
        try:
            found = function(**values)
        except Exception as error:
            raise DeclarationError(
                f"task {task}: its luigi function failed: {type(error).__name__}: {error}",
                "correct it",
            ) from error
        if not isinstance(found, str) or not found:
            raise DeclarationError(
                f"task {task}: its luigi function returned {found!r}", "return an update_id"
            )
        return found

    return told
