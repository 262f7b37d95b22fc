"""Luigi's task ids."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from tidegate.config.parameters import Parameter, Signature
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Endpoint

_SHOWN_PARAMETERS = 3
_SHOWN_CHARACTERS = 16
_SHOWN_DIGEST = 10


def luigi_id(family: str, /, **parameters: str) -> str:
    """The task_id that Luigi gives a class with parameters, each as Luigi writes it.

    >>> luigi_id("Revenue", day="2026-11-01")
    'Revenue_2026_11_01_bacb573612'
    """
    written = json.dumps(parameters, separators=(",", ":"), sort_keys=True)
    digest = hashlib.md5(written.encode(), usedforsecurity=False).hexdigest()
    first = [parameters[name] for name in sorted(parameters)[:_SHOWN_PARAMETERS]]
    shown = "_".join(text[:_SHOWN_CHARACTERS] for text in first)
    return f"{family}_{re.sub(r'[^A-Za-z0-9_]', '_', shown)}_{digest[:_SHOWN_DIGEST]}"


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
