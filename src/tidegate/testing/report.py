"""What a proof found, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why a pipeline is not proved; the value is a heading."""

    NOT_DETERMINISTIC = "the transformation is not deterministic"
    BATCH_DEPENDENT = "the transformation depends on how rows are cut into batches"
    WRONG_KEY = "the key does not tell rows apart"
    CURSOR = "the cursor is not monotonic"
    KILL = "a kill changes the result"
    LEFT = "a kill leaves something behind"
    NO_KILL = "the target is wrong without any kill"
    FAILS = "the pipeline fails"


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill that was asked for, and whether it took place."""

    point: str
    step: int
    killed: bool
    seconds: float
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, in the smallest case that was found."""

    cause: Cause
    text: str
    hint: str
    point: str | None = None
    rows: tuple[str, ...] = ()
    total_rows: int = 0
    command: str = ""


@dataclass(slots=True)
class Proof:
    """The outcome of proving one sync."""

    sync: str
    seed: int
    rows: int = 0
    steps: int = 0
    transformed: bool = False
    kills: list[Kill] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    different: int = 0
    extra: int = 0
    finding: Finding | None = None
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0
    kept: list[str] = field(default_factory=list)

    @property
    def proved(self) -> bool:
        return self.finding is None

    @property
    def killed(self) -> int:
        return sum(kill.killed for kill in self.kills)

    @property
    def summary(self) -> str:
        """The last line: "14 kills, 0 lost, 0 doubled"."""
        text = f"{self.killed} kill{'' if self.killed == 1 else 's'}"
        text += f", {self.lost} lost, {self.doubled} doubled"
        text += f", {self.different} different" if self.different else ""
        return text + (f", {self.extra} that should not be there" if self.extra else "")
