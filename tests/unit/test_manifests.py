"""The manifests below deploy/keda: valid by the schemas of their kinds, and meant as written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import typer.main
import yaml
from pydantic import BaseModel, ConfigDict

from deployment import (
    KEDA,
    Document,
    Refused,
    check_manifest,
    image_environment,
    manifest,
    pods,
)
from tidegate.cli.main import app
from tidegate.config.settings import load_settings
from tidegate.version import __version__

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md"
NAMES = ("trigger-authentication", "worker", "sweeper", "scheduler")
ALWAYS_ON = ("sweeper", "scheduler")

# What the PostgreSQL scaler reads from its trigger, beside the connection that it gets by
# reference. The CRD takes any text there, so this list is ours, from KEDA's documentation.
TRIGGER_FIELDS = {"query", "targetQueryValue", "activationTargetQueryValue"}


class Image(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    newName: str  # noqa: N815
    newTag: str  # noqa: N815


class Kustomization(BaseModel):
    """The few fields we use of a file that no package has the schema of; written by hand."""

    model_config = ConfigDict(extra="forbid", strict=True)

    apiVersion: Literal["kustomize.config.k8s.io/v1beta1"]  # noqa: N815
    kind: Literal["Kustomization"]
    resources: list[str]
    images: list[Image]


def kustomization() -> Kustomization:
    return Kustomization.model_validate(manifest("kustomization"))


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_follows_the_schema_of_its_kind(name: str) -> None:
    check_manifest(manifest(name))


def test_what_keda_starts_is_a_valid_job() -> None:
    job = manifest("worker")["spec"]["jobTargetRef"]
    check_manifest({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": job})


def container(template: Document) -> Document:
    (only,) = template["spec"]["containers"]
    found: Document = only
    return found


def worker_container(document: Document) -> Document:
    return container(document["spec"]["jobTargetRef"]["template"])


MISTAKES: dict[str, tuple[str, Callable[[Document], Any]]] = {
    "a misspelt field": ("worker", lambda d: d["spec"].update(pollingIntervall=15)),
    "a text for a number": ("worker", lambda d: d["spec"].update(maxReplicaCount="10")),
    "a number for a text": (
        "worker",
        lambda d: d["spec"]["triggers"][0]["metadata"].update(targetQueryValue=1),
    ),
    "no job": ("worker", lambda d: d["spec"].pop("jobTargetRef")),
    "no triggers": ("worker", lambda d: d["spec"].pop("triggers")),
    "a trigger without a type": ("worker", lambda d: d["spec"]["triggers"][0].pop("type")),
    "a reference without a name": (
        "worker",
        lambda d: d["spec"]["triggers"][0]["authenticationRef"].pop("name"),
    ),
    "a name as Python writes it": ("worker", lambda d: d["spec"].update(min_replica_count=0)),
    "a misspelt field of the job": (
        "worker",
        lambda d: d["spec"]["jobTargetRef"].update(backofLimit=0),
    ),
    "a misspelt field of the pod": ("worker", lambda d: worker_container(d).update(arguments=[])),
    "a misspelt limit": ("worker", lambda d: worker_container(d)["resources"].update(limit={})),
    "a container without a name": ("worker", lambda d: worker_container(d).pop("name")),
    "a kind that there is not": ("worker", lambda d: d.update(kind="ScaledJobs")),
    "a version that there is not": ("worker", lambda d: d.update(apiVersion="keda.sh/v1")),
    "a secret without a key": (
        "trigger-authentication",
        lambda d: d["spec"]["secretTargetRef"][0].pop("key"),
    ),
    "a misspelt reference": (
        "trigger-authentication",
        lambda d: d["spec"].update(secretTargetRefs=[]),
    ),
    "no selector": ("sweeper", lambda d: d["spec"].pop("selector")),
    "a text for a count": ("sweeper", lambda d: d["spec"].update(replicas="1")),
    "a misspelt selector": ("scheduler", lambda d: d["spec"].update(selectors={})),
    "a field of another kind": ("sweeper", lambda d: d["spec"].update(backoffLimit=0)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_refused(mistake: str) -> None:
    name, plant = MISTAKES[mistake]
    document = manifest(name)
    plant(document)
    with pytest.raises(Refused):
        check_manifest(document)


def test_the_kustomization_lists_every_manifest_and_names_their_image() -> None:
    listed = kustomization()
    assert sorted(listed.resources) == sorted(f"{name}.yaml" for name in NAMES)
    assert {path.name for path in KEDA.iterdir()} == {*listed.resources, "kustomization.yaml"}
    assert {container(pod)["image"] for pod in pods().values()} == {
        image.name for image in listed.images
    }
    assert [image.newTag for image in listed.images] == [__version__]


def test_the_trigger_has_only_fields_that_the_scaler_knows() -> None:
    (trigger,) = manifest("worker")["spec"]["triggers"]
    assert trigger["type"] == "postgresql"
    assert trigger["metadata"].keys() <= TRIGGER_FIELDS
    assert trigger["metadata"]["targetQueryValue"] == "1"


def test_the_trigger_gets_its_connection_by_reference() -> None:
    (trigger,) = manifest("worker")["spec"]["triggers"]
    authentication = manifest("trigger-authentication")
    assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
    (secret,) = authentication["spec"]["secretTargetRef"]
    assert secret["parameter"] == "connection"


def test_pods_are_counted_for_a_query_that_leaves_out_claimed_jobs() -> None:
    spec = manifest("worker")["spec"]
    assert spec["scalingStrategy"] == {"strategy": "accurate"}
    # Jobs that are kept running for no work would be taken off what waits.
    assert spec.get("minReplicaCount", 0) == 0


def test_a_changed_manifest_leaves_running_jobs_alone() -> None:
    assert manifest("worker")["spec"]["rollout"] == {"strategy": "gradual"}


def test_kubernetes_neither_retries_nor_keeps_a_worker() -> None:
    job = manifest("worker")["spec"]["jobTargetRef"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert (job["parallelism"], job["completions"]) == (1, 1)
    assert job["ttlSecondsAfterFinished"] > 0
    assert "activeDeadlineSeconds" not in job


def test_a_worker_takes_one_job_and_the_others_none() -> None:
    arguments = {name: container(pod)["args"] for name, pod in pods().items()}
    assert arguments == {
        "worker": ["worker", "--once"],
        "sweeper": ["sweeper"],
        "scheduler": ["scheduler"],
    }
    assert all(manifest(name)["spec"]["replicas"] >= 1 for name in ALWAYS_ON)


@pytest.mark.parametrize("pod", pods())
def test_the_command_of_a_pod_is_one_that_exists(pod: str) -> None:
    name, *options = container(pods()[pod])["args"]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(options) <= known


@pytest.mark.parametrize("pod", pods())
def test_secrets_reach_a_pod_by_reference_only(pod: str) -> None:
    only = container(pods()[pod])
    # Arguments show in the process list, and $(VAR) would be filled in there.
    assert not re.search(r"://|\$\(|=", " ".join([*only.get("command", []), *only["args"]]))
    assert all("value" not in variable for variable in only["env"])
    control = {variable["name"]: variable["valueFrom"] for variable in only["env"]}
    assert control == {
        "TIDEGATE_PROJECT__CONTROL": {"secretKeyRef": {"name": "tidegate-control", "key": "url"}}
    }
    assert only["envFrom"] == [{"secretRef": {"name": "tidegate-connections"}}]


@pytest.mark.parametrize("name", NAMES)
def test_no_manifest_holds_a_secret_or_an_address(name: str) -> None:
    document = manifest(name)
    assert document["kind"] != "Secret"
    assert "://" not in yaml.safe_dump(document)


@pytest.mark.parametrize("pod", pods())
def test_the_variables_of_a_pod_are_settings_of_a_project(pod: str, tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text('[project]\nname = "shop"\n')
    names = [variable["name"] for variable in container(pods()[pod])["env"]]
    url = "postgresql://tidegate:secret@db.example.com/control"
    variables = {**image_environment(), **dict.fromkeys(names, url)}
    settings = load_settings(tmp_path, environ=variables)
    assert settings.project.control.get_secret_value() == url
    assert settings.project.state == "/tmp/tidegate"


@pytest.mark.parametrize("pod", pods())
def test_services_beside_a_pod_do_not_become_settings(pod: str) -> None:
    assert pods()[pod]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("pod", pods())
def test_a_pod_has_no_more_rights_than_it_needs(pod: str) -> None:
    spec = pods()[pod]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pods()[pod])["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("pod", pods())
def test_what_the_image_writes_lies_on_a_bounded_volume(pod: str) -> None:
    spec = pods()[pod]["spec"]
    bounded = {volume["name"] for volume in spec["volumes"] if volume["emptyDir"]["sizeLimit"]}
    writable = {
        Path(mount["mountPath"])
        for mount in container(pods()[pod])["volumeMounts"]
        if mount["name"] in bounded and not mount.get("readOnly")
    }
    image = image_environment()
    for variable in ("HOME", "SPARK_LOCAL_DIRS", "TIDEGATE_PROJECT__STATE"):
        folder = Path(image[variable])
        assert writable & {folder, *folder.parents}, variable
    assert Path("/tmp") in writable  # what Java and Python use


@pytest.mark.parametrize("pod", pods())
def test_a_pod_has_time_to_die_well_and_not_much_more(pod: str) -> None:
    # About 2 s is what a worker takes.
    assert 5 <= pods()[pod]["spec"]["terminationGracePeriodSeconds"] <= 30


@pytest.mark.parametrize("pod", pods())
def test_a_pod_asks_for_what_it_uses(pod: str) -> None:
    resources = container(pods()[pod])["resources"]
    assert {"cpu", "memory"} <= resources["requests"].keys()
    assert "memory" in resources["limits"]


def test_a_workers_cores_are_limited_since_spark_takes_all_it_sees() -> None:
    assert "cpu" in container(pods()["worker"])["resources"]["limits"]


@pytest.mark.parametrize("name", ALWAYS_ON)
def test_a_deployments_selector_matches_its_own_pods_and_no_others(name: str) -> None:
    selected = manifest(name)["spec"]["selector"]["matchLabels"].items()
    labels = {pod: template["metadata"]["labels"].items() for pod, template in pods().items()}
    assert [pod for pod in labels if selected <= labels[pod]] == [name]


def test_the_page_names_every_secret_and_key_that_the_manifests_ask_for() -> None:
    text = PAGE.read_text(encoding="utf-8")
    text_of_manifests = "".join((KEDA / f"{name}.yaml").read_text() for name in NAMES)
    secrets = set(re.findall(r"name: (tidegate-(?:control|connections))$", text_of_manifests, re.M))
    keys = set(re.findall(r"key: (\S+)$", text_of_manifests, re.M))
    assert secrets == {"tidegate-control", "tidegate-connections"}
    assert keys == {"url", "depth-url"}
    for secret in secrets:
        assert f"secret generic {secret}" in text
    for key in keys:
        assert re.search(rf"^{key}=", text, re.M)
