"""What a person asks of a table, laid over what the project says for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from tidegate.errors import UsageError
from tidegate.model.maintenance import Action, ActionOptions, Order
from tidegate.model.policy import Policy
from tidegate.settings.maintenance import ACTION_OPTIONS
from tidegate.settings.section import keys_of

_NAMES = frozenset(one.value for one in Action)
# Where the model counts in another unit than people write.
_FIELDS = {"older_than": "older_than_seconds", "target_file_size": "target_file_bytes"}


class BadOrder(UsageError):
    """An order asks for something that there is not; `errors` names each field."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        said = "; ".join(f"{one['field']}: {one['message']}" for one in errors)
        known = next((one["known"] for one in errors if "known" in one), None)
        super().__init__(said, f"known are {', '.join(known)}" if known else None)
        self.errors = errors


def read_order(
    policy: Policy, actions: Iterable[str], options: Mapping[str, Mapping[str, Any]]
) -> Order:
    """The order for these actions; what is not given is as the project says for the table."""
    errors: list[dict[str, Any]] = []
    chosen: dict[Action, ActionOptions] = {}
    for name in actions:
        if name in _NAMES:
            chosen[Action(name)] = policy.options[Action(name)]
        else:
            errors.append(_unknown("actions", f"there is no action {name!r}", Action))
    if not chosen and not errors:
        errors.append(_unknown("actions", "name one action or more", Action))
    for name, given in options.items():
        if name not in _NAMES:
            errors.append(_unknown(f"options.{name}", f"there is no action {name!r}", Action))
        elif Action(name) not in chosen:
            message = f"{name} is not among the actions"
            errors.append({"field": f"options.{name}", "message": message})
        else:
            action = Action(name)
            try:
                chosen[action] = _laid_over(action, chosen[action], given)
            except ValidationError as error:
                errors += _fields(action, error)
    if errors:
        raise BadOrder(errors)
    return Order.of(chosen)


def _laid_over(action: Action, below: ActionOptions, given: Mapping[str, Any]) -> ActionOptions:
    read = ACTION_OPTIONS[action].model_validate(dict(given))
    made: ActionOptions = read.options()  # type: ignore[attr-defined]
    names = [_FIELDS.get(one, one) for one in read.model_fields_set]
    return replace(below, **{name: getattr(made, name) for name in names})


def _fields(action: Action, error: ValidationError) -> list[dict[str, Any]]:
    found = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(["options", action.value, *(str(part) for part in one["loc"])])
        if one["type"] == "extra_forbidden":
            keys = keys_of(ACTION_OPTIONS[action])
            found.append(_unknown(field, f"{action.value} has no such option", keys))
        else:
            message = str(one["msg"]).removeprefix("Value error, ")
            found.append({"field": field, "message": message})
    return found


def _unknown(field: str, message: str, known: Iterable[str]) -> dict[str, Any]:
    return {"field": field, "message": message, "known": [str(one) for one in known]}
