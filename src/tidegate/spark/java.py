"""The Java that Spark is started with, found in one place for Spark and for `doctor`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Spark 4.1 starts on later ones too, but its Arrow transfer then fails in every task.
OLDEST_JAVA, NEWEST_JAVA = 17, 21
# The home that `make setup` noted.
NOTE = Path(sys.prefix) / "java-home"
# Where systems, containers and people put theirs.
PLACES = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/usr/local/openjdk-*",
    "/opt/java/*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A Java; `home` is set where Spark must be told of it, `complaint` where it will not do."""

    program: str | None
    major: int | None = None
    home: Path | None = None
    complaint: str | None = None
    fix: str | None = None


def choose_java(environ: Mapping[str, str]) -> Java:
    """JAVA_HOME's Java; else the one on PATH, if it will do; else one from the usual places."""
    given = environ.get("JAVA_HOME")
    if given:
        program = str(Path(given) / "bin" / "java")
        if not os.access(program, os.X_OK):
            return _refused(environ, program, f"JAVA_HOME is {given}, which has no bin/java")
        return _examined(environ, program)
    on_path = shutil.which("java", path=environ.get("PATH"))
    found = _examined(environ, on_path) if on_path else None
    if found is not None and found.complaint is None:
        return found
    elsewhere = _installed()
    if elsewhere is not None:
        return elsewhere
    return found or _refused(environ, None, "no java on PATH, and JAVA_HOME is not set")


def _examined(environ: Mapping[str, str], program: str) -> Java:
    major = _major(program)
    if major is None:
        return _refused(environ, program, f"{program} does not run")
    if not OLDEST_JAVA <= major <= NEWEST_JAVA:
        wanted = f"Spark needs {OLDEST_JAVA} to {NEWEST_JAVA}"
        return _refused(environ, program, f"{program} is Java {major}; {wanted}")
    return Java(program, major)


def _refused(environ: Mapping[str, str], program: str | None, complaint: str) -> Java:
    on_path = shutil.which("java", path=environ.get("PATH"))
    good = _good_home(Path(on_path).resolve().parent.parent) if on_path else None
    good = good or _installed()
    fix = (
        f"export JAVA_HOME={good.home}"
        if good
        else f"install Java {OLDEST_JAVA} or {NEWEST_JAVA}, for example: "
        f"sudo apt-get install -y openjdk-{OLDEST_JAVA}-jre-headless"
    )
    return Java(program, complaint=complaint, fix=fix)


def _installed() -> Java | None:
    return next((found for home in _homes() if (found := _good_home(home))), None)


def _homes() -> Iterator[Path]:
    if NOTE.is_file():
        yield Path(NOTE.read_text(encoding="utf-8").strip())
    for place in PLACES:
        pattern = Path(place).expanduser()
        yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _good_home(home: Path) -> Java | None:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    major = _major(str(program))
    if major is None or not OLDEST_JAVA <= major <= NEWEST_JAVA:
        return None
    return Java(str(program), major, home)


def _major(program: str) -> int | None:
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match.group(1)) if match else None
