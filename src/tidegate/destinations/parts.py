"""The part of a target that a load replaces: what belongs to it, and what must not come in."""

from __future__ import annotations

from tidegate.errors import DeclarationError
from tidegate.model.relation import Relation
from tidegate.model.rules import Rules


def refuse_outside(relation: Relation, rows: int, rules: Rules) -> None:
    """Rows outside the part that is replaced would be there twice after the next time."""
    if rows:
        part = ", ".join(f"{name} = {value}" for name, value in rules.within)
        raise DeclarationError(
            f"{rows} rows for {relation} are not of the part that they replace ({part})",
            "return only rows with the values of the parameters in the columns of their names",
        )
