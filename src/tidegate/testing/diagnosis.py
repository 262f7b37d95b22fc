"""Why a proof failed, and the smallest case in which it still does."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from tidegate.testing.oracle import ContentDifference, Key, compare
from tidegate.testing.report import Cause, ProofFinding
from tidegate.testing.trial import RunFailed, TrialRuns

_TRIALS = 6
_SECONDS = 240.0
_SHOWN_KEYS = 8
_SHOWN_ROWS = 10

_HINTS = {
    Cause.NOT_DETERMINISTIC: "a row must give the same result whenever it is transformed: replace "
    "rand(), uuid(), current_timestamp() and the like by columns of the row",
    Cause.BATCH_DEPENDENT: "a batch is an arbitrary slice of the table: look at single rows only, "
    "and make aggregates and windows in a step of their own",
    Cause.WRONG_KEY: "declare a key that is unique, such as the primary key; or, if only the "
    'newest row of each key is wanted, duplicates = "newest"',
    Cause.CURSOR: "stamp the cursor in the source at every write (a trigger with now()), or "
    "declare a lookback longer than rows can be late",
    Cause.KILL: "does the transformation keep state of its own, in a file or a table? a killed run "
    "leaves it behind; if it does not, please report this",
    Cause.LEFT: "the rows are right, and maintenance can remove the rest; please report this",
    Cause.NO_KILL: "run the command below and compare the two tables (--keep leaves them)",
    Cause.FAILS: "correct it and try again",
}


class Diagnosis:
    """Finds the cause by further trials, within a budget."""

    def __init__(self, workshop: TrialRuns, seed: int, say: Callable[[str], None]) -> None:
        self._workshop = workshop
        self._pool = workshop.pool
        self._seed = seed
        self._say = say
        self._left = _TRIALS
        self._deadline: float | None = None

    def check_key(self) -> ProofFinding | None:
        """Look at the sample itself: rows that share a key would collapse into one."""
        sync = self._workshop.bench.sync
        if self._workshop.transformed or sync.duplicates == "newest" or not self._workshop.key:
            return None
        shared = self._pool.shared_key()
        if not shared:
            return None
        first, second, *_ = self._pool.labels(shared)
        key = ", ".join(self._pool.key)
        value = self._pool.key_texts(shared)[0]
        if first == second:
            text = f"{len(shared)} rows have the same key ({key}) = ({value})"
        else:
            text = f"rows {first} and {second} have the same key ({key}) = ({value})"
        text += ", and only one of them would be in the target"
        return self._finding(Cause.WRONG_KEY, text, shared[:2], None)

    def explain_left(self, left: Sequence[str]) -> ProofFinding:
        """The rows are right, but something is there that no run will need."""
        shown = ", ".join(left[:_SHOWN_ROWS])
        more = f" and {len(left) - _SHOWN_ROWS} more" if len(left) > _SHOWN_ROWS else ""
        return self._finding(Cause.LEFT, f"after a run to the end there is {shown}{more}", [], None)

    def explain_failure(self, error: RunFailed) -> ProofFinding:
        """A run failed by itself: on which rows?"""
        cause = Cause.WRONG_KEY if "is not unique" in error.message else Cause.FAILS

        def fails(places: Sequence[int]) -> bool:
            try:
                self._workshop.clean_pass(places)
            except RunFailed as again:
                return again.kind == error.kind
            return False

        places = self._shrink(fails, [])
        hint = _HINTS[cause] if cause is Cause.WRONG_KEY else error.hint
        return self._finding(cause, error.message, places, None, hint)

    def explain(
        self, difference: ContentDifference, points: Sequence[str]
    ) -> tuple[ProofFinding | None, str | None]:
        """The cause of a difference; or none, and a note, when it is as documented."""
        if self._workshop.transformed and not difference.only_extra:
            finding = self._check_determinism()
            if finding is not None:
                return finding, None
        self._say("again without any kill")
        plain = self._workshop.compare_replay([], None)
        if plain.only_extra and plain.extra == difference.extra and difference.only_extra:
            return None, (
                f"{len(plain.extra)} rows stay in the target as they were: the transformation "
                "drops their newest version, and a merge removes nothing (docs/guides/transform.md)"
            )
        if plain and not plain.only_extra:
            return self._explain_without_kill(plain), None
        return self._explain_kill(difference, points), None

    def _check_determinism(self) -> ProofFinding | None:
        self._say("a second clean pass, to compare with the first")
        found = compare(self._workshop.expected(), self._workshop.clean_pass())
        if not found:
            return None

        def fails(places: Sequence[int]) -> bool:
            first = self._workshop.clean_pass(places)
            return bool(compare(first, self._workshop.clean_pass(places)))

        guess = self._pool.places(found.keys[:1])
        places = self._shrink(fails, [guess])
        label = _named(self._workshop.key, found.keys[0])
        if found.columns:
            what = f"differ in {', '.join(found.columns)}, first at {label}"
        else:
            what = f"do not give the same rows, first at {label}"
        text = f"two clean passes over the same rows {what}"
        return self._finding(Cause.NOT_DETERMINISTIC, text, places, None)

    def _explain_without_kill(self, plain: ContentDifference) -> ProofFinding:
        def fails(places: Sequence[int]) -> bool:
            found = self._workshop.compare_replay([], places)
            return bool(found) and not found.only_extra

        witnesses = dict(self._pool.late_rows())
        for place in self._pool.places(plain.lost):
            if place in witnesses:
                witness = witnesses[place]
                smallest = self._shrink(fails, [[place, witness]])
                text = (
                    f"row {self._pool.label(place)} was written after {self._pool.label(witness)} "
                    f"but its {self._pool.cursor} is lower, so the watermark had passed it"
                )
                return self._finding(Cause.CURSOR, text, smallest, None)
        guess = self._pool.places(plain.keys[:1])
        smallest = self._shrink(fails, [guess])
        cause = Cause.BATCH_DEPENDENT if self._workshop.transformed else Cause.NO_KILL
        text = f"{plain} without any kill{self._first(plain)}"
        return self._finding(cause, text, smallest, None)

    def _explain_kill(self, difference: ContentDifference, points: Sequence[str]) -> ProofFinding:
        guilty: list[str] = list(points)
        # Later points first: more was done by then.
        for point in reversed(points):
            if not self._may_try():
                break
            self._say(f"again with one kill, at {point}")
            if self._workshop.compare_replay([point], None):
                guilty = [point]
                break

        def fails(places: Sequence[int]) -> bool:
            return bool(self._workshop.compare_replay(guilty, places))

        self._left = max(self._left, 2)
        smallest = self._shrink(fails, [self._pool.places(difference.keys[:1])])
        where = guilty[0] if len(guilty) == 1 else None
        what = f"killed at {where}" if where else f"killed at {len(guilty)} points in turn"
        text = f"{difference} when {what}{self._first(difference)}"
        return self._finding(Cause.KILL, text, smallest, where)

    def _first(self, difference: ContentDifference) -> str:
        first = difference.keys[0]
        shown = first in difference.different and difference.columns
        columns = f" (in {', '.join(difference.columns)})" if shown else ""
        return f", first at {_named(self._workshop.key, first)}{columns}"

    def _may_try(self) -> bool:
        if self._deadline is None:
            self._deadline = time.monotonic() + _SECONDS
        if self._left <= 0 or time.monotonic() > self._deadline:
            return False
        self._left -= 1
        return True

    def _shrink(
        self, fails: Callable[[Sequence[int]], bool], guesses: Sequence[list[int]]
    ) -> list[int]:
        """The smallest part of the sample that still fails, as far as the budget goes."""
        best = self._pool.places()
        for guess in guesses:
            if guess and len(guess) < len(best) and self._tries(fails, guess):
                best = guess
                break
        while len(best) > 1:
            middle = len(best) // 2
            half = next((h for h in (best[:middle], best[middle:]) if self._tries(fails, h)), None)
            if half is None:
                break
            best = half
        return best

    def _tries(self, fails: Callable[[Sequence[int]], bool], places: list[int]) -> bool:
        if not self._may_try():
            return False
        self._say(f"again with {len(places):,} row{'s'[: len(places) > 1]}")
        return fails(places)

    def _finding(
        self,
        cause: Cause,
        text: str,
        places: Sequence[int],
        point: str | None,
        hint: str | None = None,
    ) -> ProofFinding:
        return ProofFinding(
            cause=cause,
            text=text,
            hint=hint or _HINTS[cause],
            point=point,
            rows=tuple(self._pool.labels(places[:_SHOWN_ROWS])),
            total_rows=len(places),
            command=self._command(places, cause, point),
        )

    def _command(self, places: Sequence[int], cause: Cause, point: str | None) -> str:
        words = ["tidegate", "prove", self._workshop.bench.sync.name, "--seed", str(self._seed)]
        if cause in (Cause.KILL, Cause.LEFT):
            words += ["--point", point] if point else []
        else:
            words += ["--point", "none"]
        keys = self._pool.key_texts(places) if len(places) <= 2 * _SHOWN_KEYS else []
        if keys and len(keys) <= _SHOWN_KEYS and not self._pool.invented:
            for key in keys:
                words += ["--key", key]
        else:
            words += ["--rows", str(self._pool.rows)]
        return shlex.join(words)


def _named(columns: Sequence[str], key: Key) -> str:
    if len(columns) != len(key):
        return "a row"
    return ", ".join(f"{name}={value}" for name, value in zip(columns, key, strict=True))
