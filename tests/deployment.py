"""The deployment files as data, and a check of manifests against the schemas of their kinds.

The schemas are those of KEDA's own CRDs and of Kubernetes' OpenAPI document, as the packages
cloudcoil.models.keda and cloudcoil.models.kubernetes carry them: pydantic models made from them.
These models pass over unknown fields, as a cluster does by default, so what they understood is
compared with what was written.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

DEPLOY = Path(__file__).parents[1] / "deploy"
KEDA = DEPLOY / "keda"
CONTAINERFILE = DEPLOY / "Containerfile"

Document = dict[str, Any]

# Imported when they are needed: making the models takes seconds.
_MODELS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "apps/v1": "cloudcoil.models.kubernetes.apps.v1",
    "batch/v1": "cloudcoil.models.kubernetes.batch.v1",
}
_KINDS = ("ScaledJob", "TriggerAuthentication", "Deployment", "Job")


class Refused(Exception):
    """A manifest does not follow the schema of its kind."""


def check_manifest(document: Document) -> None:
    """Raise `Refused` for a missing, unknown or wrongly typed field."""
    kind = (str(document.get("apiVersion")), str(document.get("kind")))
    found = importlib.import_module(_MODELS[kind[0]]) if kind[0] in _MODELS else None
    model: Any = getattr(found, kind[1], None) if kind[1] in _KINDS else None
    if model is None:
        raise Refused(f"unknown kind {kind}")
    try:
        read = model.model_validate(document, strict=True)
    except ValidationError as error:
        raise Refused(str(error)) from None
    unknown = list(_differences(document, read.model_dump(by_alias=True, exclude_unset=True)))
    if unknown:
        raise Refused(f"not in the schema of {kind[1]}: {', '.join(unknown)}")


def _differences(written: Any, understood: Any, path: str = "") -> Iterator[str]:
    if isinstance(written, dict) and isinstance(understood, dict):
        for key in written.keys() | understood.keys():
            if key not in written or key not in understood:
                yield f"{path}.{key}"
            else:
                yield from _differences(written[key], understood[key], f"{path}.{key}")
    elif isinstance(written, list) and isinstance(understood, list):
        for place, (one, other) in enumerate(zip(written, understood, strict=True)):
            yield from _differences(one, other, f"{path}[{place}]")
    elif written != understood:
        yield path


def manifest(name: str) -> Document:
    """One manifest below deploy/keda, read anew."""
    loaded: Document = yaml.safe_load((KEDA / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def depth_query() -> str:
    """The query that KEDA polls."""
    (trigger,) = manifest("worker")["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


def pods() -> dict[str, Document]:
    """The pod templates of the worker, the sweeper and the scheduler."""
    return {
        "worker": manifest("worker")["spec"]["jobTargetRef"]["template"],
        "sweeper": manifest("sweeper")["spec"]["template"],
        "scheduler": manifest("scheduler")["spec"]["template"],
    }


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file, continued lines joined, comments left out."""
    text = CONTAINERFILE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(name.upper(), " ".join(rest.split())) for name, rest in found]


def image_environment() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(
        pair.split("=", 1)
        for name, rest in instructions()
        if name == "ENV"
        for pair in rest.split(" ")
    )
