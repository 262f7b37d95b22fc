"""The container file, read as text: no image is built here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployment import image_environment, instructions, pods

REPOSITORY = Path(__file__).parents[2]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, rest))
    return found


def last(name: str) -> str:
    """An instruction of the image itself, the last of its name."""
    return [rest for word, rest in stages()[-1] if word == name][-1]


def test_every_base_image_is_pinned_by_a_tag() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert bases == ["${BASE}"] * 2
    # The one for which requirements.lock was made; a digest is given when it is built.
    given = next(rest for name, rest in instructions() if name == "ARG")
    assert re.fullmatch(r"BASE=python:3\.11-slim-[a-z]+", given), given


def test_both_stages_have_the_same_python() -> None:
    assert len({stage[0][1].split()[0] for stage in stages()}) == 1


def test_java_17_is_installed_without_a_desktop() -> None:
    installed = " ".join(rest for name, rest in stages()[-1] if name == "RUN")
    assert "openjdk-17-jre-headless" in installed
    assert "--no-install-recommends" in installed


def test_the_entry_point_is_in_exec_form_so_that_signals_arrive() -> None:
    entry, command = json.loads(last("ENTRYPOINT")), json.loads(last("CMD"))
    assert entry[-1] == "tidegate"
    assert "sh" not in {Path(word).name for word in entry}
    # With -g the JVM would get the signal as well, before the worker could decide.
    assert entry[:-1] == ["tini", "--"]
    assert command == ["worker", "--once"]


def test_the_user_is_a_number_other_than_root_and_the_manifests_one() -> None:
    user, group = (int(part) for part in last("USER").split(":"))
    assert user > 0
    assert group > 0
    for pod in pods().values():
        context = pod["spec"]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
            user,
            group,
            group,
        )


def test_the_user_is_set_after_everything_that_needs_root() -> None:
    names = [name for name, _ in stages()[-1]]
    assert "RUN" not in names[names.index("USER") :]
    assert "COPY" not in names[names.index("USER") :]


def test_no_secret_is_built_in() -> None:
    assert image_environment().keys() == {
        "HOME",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "SPARK_LOCAL_DIRS",
        "TIDEGATE_PROJECT_DIR",
        "TIDEGATE_PROJECT__STATE",
    }
    # What stands before the first FROM names the image alone, and is in no layer.
    assert not [name for stage in stages() for name, _ in stage if name == "ARG"]
    assert not [rest for _, rest in instructions() if "://" in rest]


def test_nothing_is_added_from_elsewhere_and_nothing_unnamed_is_copied() -> None:
    assert not [name for name, _ in instructions() if name == "ADD"]
    for _, rest in (one for one in instructions() if one[0] == "COPY"):
        sources = [word for word in rest.split() if not word.startswith("--")][:-1]
        assert "." not in sources
        assert not [source for source in sources if "*" in source]


def test_what_is_copied_is_enough_to_build_the_wheel(tmp_path: Path) -> None:
    context = tmp_path / "build"
    context.mkdir()
    for name, rest in stages()[0]:
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                path = REPOSITORY / source
                if path.is_dir():
                    shutil.copytree(path, context / target, dirs_exist_ok=True)
                else:
                    shutil.copy(path, context / target)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, context],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("tidegate-*.whl"))) == 1


@pytest.mark.parametrize("step", ["python -m build --wheel", "/wheels/*.whl"])
def test_the_image_gets_the_wheel_of_this_repository(step: str) -> None:
    assert any(step in rest for name, rest in instructions() if name == "RUN")
