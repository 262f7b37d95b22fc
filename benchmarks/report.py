"""What a benchmark run prints: each figure with its bar and whether it was reached."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Collects figures and prints each as it comes."""

    missed: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def ratio(
        self,
        name: str,
        value: float,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        self.value(name, value, "x", at_most=at_most, at_least=at_least)

    def value(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        reached = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
        bar = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
        print(f"{name}: {value:.2f} {unit} ({bar}: {'yes' if reached else 'NO'})", flush=True)
        if not reached:
            self.missed.append(name)

    def holds(self, name: str, reached: bool) -> None:
        print(f"{name}: {'yes' if reached else 'NO'}", flush=True)
        if not reached:
            self.missed.append(name)
