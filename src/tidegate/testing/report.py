"""What a proof found, and as JUnit XML."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree


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
class ProofFinding:
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
    finding: ProofFinding | None = None
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


# What XML 1.0 cannot hold, even escaped; a key may.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path, proofs: list[Proof]) -> None:
    """Write the report, with the folder it goes to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    suites = ElementTree.Element("testsuites", name="tidegate prove")
    for proof in proofs:
        _add_suite(suites, proof)
    ElementTree.indent(suites)
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _add_suite(suites: ElementTree.Element, proof: Proof) -> None:
    blamed = [kill for kill in proof.kills if not kill.ok]
    skipped = [kill for kill in proof.kills if not kill.killed]
    # A finding that no single kill is to blame for belongs to the case without one.
    plain = proof.finding if proof.finding is not None and not blamed else None
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name=f"tidegate prove {proof.sync}",
        tests=str(1 + len(proof.kills)),
        failures=str(len(blamed) + (plain is not None)),
        errors="0",
        skipped=str(len(skipped)),
        time=f"{proof.seconds:.3f}",
    )
    case = _case(suite, proof, "equals one clean pass", proof.seconds - _kill_seconds(proof))
    if plain is not None:
        _add_failure(case, plain)
    for kill in proof.kills:
        case = _case(suite, proof, f"killed at {kill.point} in step {kill.step}", kill.seconds)
        _mark(case, kill, proof.finding)
    ElementTree.SubElement(suite, "system-out").text = proof.summary


def _kill_seconds(proof: Proof) -> float:
    return sum(kill.seconds for kill in proof.kills)


def _case(
    suite: ElementTree.Element, proof: Proof, name: str, seconds: float
) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"tidegate.prove.{proof.sync}",
        name=name,
        time=f"{max(0.0, seconds):.3f}",
    )


def _mark(case: ElementTree.Element, kill: Kill, finding: ProofFinding | None) -> None:
    if not kill.killed:
        ElementTree.SubElement(case, "skipped", message="the run ended without passing this point")
    elif not kill.ok and finding is not None:
        _add_failure(case, finding)


def _add_failure(case: ElementTree.Element, finding: ProofFinding) -> None:
    failure = ElementTree.SubElement(
        case, "failure", type=finding.cause.name.lower(), message=_clean(finding.cause.value)
    )
    rows = f"rows: {'; '.join(finding.rows)}"
    failure.text = _clean("\n".join([finding.text, rows, finding.hint, finding.command]))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
