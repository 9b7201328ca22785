"""The manifests for Numaflow have fields of its resources, and settings that udsource accepts."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from dexorder_udsource.config import UdsourceSettings
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
DATAPLANE_WAITS_SECONDS = 20
"""For acks and nacks in flight, once it is told to stop."""
POD_GRACE_SECONDS = 30
"""Kubernetes' default, which Numaflow leaves as it is."""


def names(text: str) -> set[str]:
    return set(text.split())


# JSON names in pkg/apis/numaflow/v1alpha1 of numaflow, at and after 1.4; what every pod template adds comes first.
POD = names(
    """
    metadata nodeSelector tolerations securityContext imagePullSecrets priorityClassName priority affinity
    serviceAccountName
    """
)
LIMITS = names("readBatchSize readTimeout bufferMaxLength bufferUsageLimit")
SCALE = names(
    """
    disabled min max lookbackSeconds zeroReplicaSleepSeconds targetProcessingSeconds targetBufferAvailability
    scaleUpCooldownSeconds scaleDownCooldownSeconds replicasPerScaleUp replicasPerScaleDown
    """
)
CONTAINER = names("image command args env envFrom volumeMounts resources securityContext imagePullPolicy")
MONO_VERTEX = POD | names(
    """
    replicas source sink containerTemplate volumes limits scale initContainers sidecars daemonTemplate
    updateStrategy lifecycle
    """
)
VERTEX = POD | names(
    """
    name source sink udf containerTemplate initContainerTemplate limits scale volumes initContainers sidecars
    partitions sideInputs sideInputsContainerTemplate updateStrategy
    """
)
PIPELINE = names("interStepBufferServiceName vertices edges lifecycle limits watermark templates sideInputs")


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "numaflow" / f"{name}.yaml").read_text())


def source_vertex(name: str) -> Any:
    """Return the part with the pod's fields and the source."""
    spec = load(name)["spec"]
    return spec if name == "monovertex" else next(vertex for vertex in spec["vertices"] if "source" in vertex)


def container(name: str) -> Any:
    return source_vertex(name)["source"]["udsource"]["container"]


def test_pipeline_has_known_fields_and_its_edge_joins_its_vertices() -> None:
    pipeline = load("pipeline")
    assert (pipeline["apiVersion"], pipeline["kind"]) == ("numaflow.numaproj.io/v1alpha1", "Pipeline")
    spec = pipeline["spec"]
    assert spec.keys() <= PIPELINE and spec["limits"].keys() <= LIMITS
    for vertex in spec["vertices"]:
        assert vertex.keys() <= VERTEX and vertex["scale"].keys() <= SCALE
    ends = {vertex["name"] for vertex in spec["vertices"]}
    assert [{edge["from"], edge["to"]} for edge in spec["edges"]] == [ends]


def test_monovertex_has_known_fields() -> None:
    mono_vertex = load("monovertex")
    assert (mono_vertex["apiVersion"], mono_vertex["kind"]) == ("numaflow.numaproj.io/v1alpha1", "MonoVertex")
    spec = mono_vertex["spec"]
    assert spec.keys() <= MONO_VERTEX and spec["limits"].keys() <= LIMITS and spec["scale"].keys() <= SCALE
    assert spec["sink"]


def test_both_have_the_same_container() -> None:
    assert container("pipeline") == container("monovertex")


@pytest.mark.parametrize("name", ["pipeline", "monovertex"])
def test_container_is_our_image_with_settings_it_reads_and_accepts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = container(name)
    assert given.keys() <= CONTAINER
    _, deployment = yaml.safe_load_all((DEPLOY / "kubernetes" / "udsource.yaml").read_text())
    (elsewhere,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (given["image"], given["command"]) == (elsewhere["image"], elsewhere["command"])
    assert find_spec(f"{given['command'][2]}.__main__")
    prefix, fields = UdsourceSettings.model_config["env_prefix"], UdsourceSettings.model_fields
    known = {str(field.validation_alias or prefix + name).upper() for name, field in fields.items()}
    for variable in given["env"]:
        assert variable["name"] in known
        monkeypatch.setenv(variable["name"], variable.get("value", "of-the-pod"))
    settings = UdsourceSettings()
    assert DATAPLANE_WAITS_SECONDS < settings.drain_seconds < POD_GRACE_SECONDS
    assert settings.group != UdsourceSettings.model_fields["group"].default  # Spark's
    port = source_vertex(name)["metadata"]["annotations"]["prometheus.io/port"]
    assert settings.metrics_listen.endswith(f":{port}")


@pytest.mark.parametrize("name", ["pipeline", "monovertex"])
def test_pod_runs_as_the_user_of_the_image(name: str) -> None:
    user = source_vertex(name)["securityContext"]["runAsUser"]
    assert f"useradd --create-home --uid {user} " in (DEPLOY / "Dockerfile").read_text()
