"""What all sections of tidegate.toml share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, no unknown keys, no input echoed in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        populate_by_name=True,
        defer_build=True,
    )


def keys_of(model: type[Section]) -> tuple[str, ...]:
    """Return the keys of a section as TOML writes them."""
    return tuple(field.alias or name for name, field in model.model_fields.items())
