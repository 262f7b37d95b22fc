"""A table's metadata is read in several steps, while others may remove what it was made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidegate.errors import BusyError, DestinationError, TidegateError
from tidegate.lake.catalog import Catalog
from tidegate.lake.metadata import open_table
from tidegate.model.relation import Relation

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")
_TRIES = 5


def read_consistently(catalog: Catalog, relation: Relation, read: Callable[[Table], T]) -> T | None:
    """What `read` tells of the table at one moment; None when there is none."""
    seen = None
    for _ in range(_TRIES):
        table = open_table(catalog, relation)
        if table is None:
            return None
        try:
            return read(table)
        except FileNotFoundError as error:
            if table.metadata_location == seen:
                raise DestinationError(
                    f"the metadata of {catalog.name}:{relation} names a file that is not there",
                    f"restore what is missing below {table.metadata.location}, or roll the table "
                    "back to a snapshot that is whole",
                ) from error
            seen = table.metadata_location
        except TidegateError:
            raise
        except Exception as error:
            # Each storage has errors of its own, and so has a file that is not what it should be.
            raise DestinationError(
                f"the metadata of {catalog.name}:{relation} cannot be read: {type(error).__name__}",
                f"see that the files below {table.metadata.location} can be reached from here, and "
                "are whole",
            ) from error
    raise BusyError(
        f"{catalog.name}:{relation} is being changed faster than it can be read", "try again"
    )
