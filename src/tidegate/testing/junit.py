"""A proof as JUnit XML, which every CI system reads: one test case per kill point."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from tidegate.testing.report import Finding, Kill, Proof

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


def _mark(case: ElementTree.Element, kill: Kill, finding: Finding | None) -> None:
    if not kill.killed:
        ElementTree.SubElement(case, "skipped", message="the run ended without passing this point")
    elif not kill.ok and finding is not None:
        _add_failure(case, finding)


def _add_failure(case: ElementTree.Element, finding: Finding) -> None:
    failure = ElementTree.SubElement(
        case, "failure", type=finding.cause.name.lower(), message=_clean(finding.cause.value)
    )
    rows = f"rows: {'; '.join(finding.rows)}"
    failure.text = _clean("\n".join([finding.text, rows, finding.hint, finding.command]))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
