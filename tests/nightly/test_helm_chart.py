"""The Helm chart as helm renders it; `tests/unit/deploy/test_pods.py` checks its pods."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.nightly import manifest_schemas
from tests.paths import ROOT

CHART = ROOT / "deploy" / "helm"
PARTS = {"relay", "gateway", "events", "udsource", "ingestor", "spark"}
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed"),
]


def render(*options: str) -> list[dict[str, Any]]:
    command = ["helm", "template", "dexorder", str(CHART), "--kube-version", "1.34.0", *options]
    return list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def workloads(objects: list[dict[str, Any]]) -> Mapping[str, dict[str, Any]]:
    """Return the pod specs by part."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def checkable(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects without Linkerd's, unless its definitions are there."""
    has_linkerd = manifest_schemas.LINKERD_CRDS in os.environ
    return [each for each in objects if has_linkerd or not each["apiVersion"].startswith("policy.linkerd.io/")]


def test_the_chart_passes_lint() -> None:
    subprocess.run(["helm", "lint", "--strict", str(CHART)], check=True)


def test_no_variables_are_made_of_the_names_of_services() -> None:
    """A release named dexorder would put DEXORDER_RELAY_PORT and the like into the environment."""
    pods = workloads(render())
    assert set(pods) == PARTS
    assert [name for name, pod in pods.items() if pod["enableServiceLinks"] is not False] == []


def test_all_objects_have_only_fields_of_their_schemas(tmp_path: Path) -> None:
    try:
        known, python = manifest_schemas.schemas(), manifest_schemas.install(tmp_path / "venv")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the schemas can't be had: {error}")
    egress = "istio.egress[0].host=api.binance.com,istio.egress[0].port=443,istio.egress[0].protocol=TLS"
    routes = "routes.parents[0].name=edge,routes.relayHosts[0]=r.example,routes.gatewayHosts[0]=g.example"
    whole = f"mesh=istio,{egress},{routes},routes.webHosts[0]=w.example,ingress.enabled=true,ingress.host=w.example"
    for options in ("", whole, "mesh=istio,security=tls,istio.nativeSidecars=false", "mesh=ambient", "mesh=linkerd"):
        objects = checkable(render(*(("--set", options) if options else ())))
        assert manifest_schemas.problems(python, known, objects) == [], options
    planted = render("--set", whole)
    for each in planted:
        each["sepc"] = {}
    assert len(manifest_schemas.problems(python, known, planted)) == len(planted), "each planted field is found"
    for mesh in ("istio", "ambient", "linkerd"):
        text = (ROOT / "deploy" / "kubernetes" / "mesh" / mesh / "policies.yaml").read_text()
        objects = checkable(list(yaml.safe_load_all(text)))
        assert objects or mesh == "linkerd"
        assert manifest_schemas.problems(python, known, objects) == []
        with_spec = [each for each in objects if "spec" in each]
        for each in with_spec:
            each["spec"]["sepc"] = {}
        assert len(manifest_schemas.problems(python, known, with_spec)) >= len(with_spec), "each planted field is found"


def test_the_chart_has_no_secret_and_refers_to_those_that_are_named() -> None:
    objects = render("--set", "secrets.events=channels")
    assert not [each for each in objects if each["kind"] == "Secret"]
    (events,) = workloads(objects)["events"]["containers"]
    assert {"secretRef": {"name": "channels"}} in events["envFrom"]
    assert not [each for each in workloads(render())["events"]["containers"][0]["envFrom"] if "secretRef" in each]


def test_parts_can_be_left_out_and_foreign_clients_let_in() -> None:
    client = "networkPolicy.clients[0].namespaceSelector.matchLabels.team=quant"
    objects = render("--set", "parts.events.enabled=false", "--set", client)
    assert set(workloads(objects)) == PARTS - {"events"}
    policies = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "NetworkPolicy"}
    quant = [{"namespaceSelector": {"matchLabels": {"team": "quant"}}}]
    opened = {name for name, spec in policies.items() if any(rule.get("from") == quant for rule in spec["ingress"])}
    assert opened == {"dexorder-relay", "dexorder-gateway", "dexorder-udsource"}
