"""A stage that lasts as long as a test wants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_SLOW = """
import pathlib
import tidegate as tg

@tg.sync(source="source:public.orders", target="warehouse:raw.orders", cursor="updated_at",
         partitions=2)
def orders(df):
    if not pathlib.Path({gate!r}).exists():
        return df
    def stay(batches):
        import pathlib, time
        pathlib.Path({busy!r}).touch()
        while pathlib.Path({hold!r}).exists():
            time.sleep(0.1)
        yield from batches
    return df.mapInArrow(stay, df.schema)
"""


@dataclass(frozen=True, slots=True)
class SlowStage:
    """A transformation that stays in Spark, on both of its cores, as long as it is told to.

    Spark ends a task, not what a user's Python does in it: `hold` lets those processes go at last.
    """

    folder: Path

    @property
    def pipelines(self) -> str:
        paths = {name: str(self.folder / name) for name in ("gate", "hold", "busy")}
        return _SLOW.format(**paths)

    @property
    def is_busy(self) -> bool:
        return (self.folder / "busy").exists()

    def close_gate(self) -> None:
        """Whoever runs the transformation from now on stays in it."""
        (self.folder / "busy").unlink(missing_ok=True)
        for name in ("gate", "hold"):
            (self.folder / name).touch()

    def open_gate(self) -> None:
        """Later runs pass; those in it stay."""
        (self.folder / "gate").unlink(missing_ok=True)

    def let_go(self) -> None:
        self.open_gate()
        (self.folder / "hold").unlink(missing_ok=True)
