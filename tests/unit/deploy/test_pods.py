"""Pods of the manifests and of the chart pass the restricted policy, with a read-only root file system."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.paths import ROOT
from tests.pod_security import dangling_references, pods, problems

DEPLOY = ROOT / "deploy"
PARTS = {"relay", "gateway", "events", "udsource", "ingestor", "spark"}
CHART_VALUES: tuple[list[str], ...] = (
    [],
    ["--set", "secrets.events=channels,podMonitor.enabled=true,parts.relay.storage.className=fast"],
    ["--set", "networkPolicy.enabled=false,podDisruptionBudget=false,parts.events.enabled=false,lameDuckSeconds=0"],
    ["--set-json", 'image.pullSecrets=[{"name": "registry"}]', "--set-json", 'jwtKeys={"a.pem": "-----BEGIN\\nK"}'],
    ["--set", "mesh=istio,istio.principals.client[0]=cluster.local/ns/quant/sa/desk"],
    ["--set", "mesh=istio,security=tls,istio.nativeSidecars=false"],
    ["--set", "mesh=ambient,podLabels.team=quant,parts.relay.annotations.a=b"],
    ["--set", "mesh=linkerd,serviceAnnotations.a=b"],
    ["--set", "security=none,settings.DEXORDER_ALLOW_INSECURE=1", "--set-string", "settings.DEXORDER_ALLOW_INSECURE=1"],
    ["--set-json", 'networkPolicy.clients=[{"namespaceSelector": {"matchLabels": {"team": "quant"}}}]'],
)


def kustomized() -> list[dict[str, Any]]:
    """Return the objects that ``kubectl apply -k`` would send."""
    folder = DEPLOY / "kubernetes"
    resources = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [each for name in resources for each in yaml.load_all((folder / name).read_text(), yaml.CSafeLoader)]


def rendered(*options: str) -> list[dict[str, Any]]:
    command = ["helm", "template", "dexorder", str(DEPLOY / "helm"), "--kube-version", "1.34.0", *options]
    return list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def test_every_manifest_is_in_the_kustomization() -> None:
    named = set(yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"])
    there = {file.name for file in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert there - named == {"kustomization.yaml", "podmonitor.yaml"} and named <= there


def test_pods_of_the_manifests_pass_the_restricted_policy() -> None:
    objects = kustomized()
    workloads = dict(pods(objects))
    assert set(workloads) == PARTS
    assert {name: found for name, each in workloads.items() if (found := problems(each))} == {}
    assert dangling_references(objects) == []
    assert not [each for each in objects if each["kind"] == "Secret"]  # each apply would replace the user's


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("options", CHART_VALUES)
def test_pods_of_the_chart_pass_the_restricted_policy(options: list[str]) -> None:
    objects = rendered(*options)
    workloads = {name.removeprefix("dexorder-"): each for name, each in pods(objects)}
    left_out = {"events"} if "parts.events.enabled=false" in ",".join(options) else set()
    assert set(workloads) == PARTS - left_out
    assert {name: found for name, each in workloads.items() if (found := problems(each))} == {}
    assert dangling_references(objects) == []


def _of_container(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["containers"][0]["securityContext"].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda pod: pod.update(hostNetwork=True), "hostNetwork is set"),
        (lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "volume x is a hostPath"),
        (lambda pod: pod.pop("automountServiceAccountToken"), "automountServiceAccountToken is not false"),
        (lambda pod: pod["securityContext"].pop("runAsNonRoot"), "relay: runAsNonRoot is None"),
        (lambda pod: pod["securityContext"].update(runAsUser=0), "relay: runAsUser is 0"),
        (lambda pod: pod["securityContext"].pop("seccompProfile"), "relay: seccompProfile is neither"),
        (_of_container("readOnlyRootFilesystem", False), "relay: readOnlyRootFilesystem is False"),
        (_of_container("allowPrivilegeEscalation", True), "relay: allowPrivilegeEscalation is True"),
        (_of_container("privileged", True), "relay: privileged is set"),
        (_of_container("capabilities", {"drop": ["ALL"], "add": ["SYS_PTRACE"]}), "relay: capabilities are"),
        (lambda pod: pod["containers"][0]["ports"][0].update(hostPort=1), "relay: a hostPort is set"),
        (lambda pod: pod["containers"][0]["volumeMounts"].pop(0), "relay: /tmp is not a volume"),
        (lambda pod: pod["volumes"].pop(), "mount exchanges has no volume"),
        (
            lambda pod: pod["containers"][0]["env"].append({"name": "DB", "value": "/data/x.db"}),
            "DB: /data/x.db is in no volume",
        ),
    ],
)
def test_each_broken_rule_is_found(change: Callable[[dict[str, Any]], Any], problem: str) -> None:
    workload = copy.deepcopy(dict(pods(kustomized()))["relay"])
    change(workload["spec"]["template"]["spec"])
    (found,) = problems(workload)
    assert found.startswith(problem)


def test_names_that_exist_nowhere_are_found() -> None:
    objects = copy.deepcopy(kustomized())
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    by_kind["Service", "relay"]["spec"]["ports"][0]["port"] = 1
    by_kind["Service", "gateway"]["spec"]["selector"]["app"] = "gatewy"
    by_kind["ConfigMap", "jwt-keys"]["metadata"]["name"] = "keys"
    assert dangling_references(objects) == [
        "events: ConfigMap jwt-keys does not exist",
        "service relay: port 1 is not one of its pods'",
        "service gateway selects the pods of 0 workloads",
    ]
