"""Policies of a mesh: those of the code's role tables, nobody let in by an empty list, nothing insecure that ships."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import write_mesh
from dexorder_common.rpc.identity import OPEN_SERVICES, STAFF, Role
from dexorder_gateway.events import service as events
from dexorder_protos.dexorder.relay.v1 import history_service_pb2
from dexorder_relay.access import ROLES
from tests.paths import ROOT
from tests.pod_security import dangling_references, pods, problems
from tests.unit.deploy.test_pods import rendered

DEPLOY = ROOT / "deploy"
MESHES = ("istio", "ambient", "linkerd")
Object = dict[str, Any]
Line = tuple[frozenset[str], str, frozenset[str]]
"""Principals, port and paths of a rule; no principals are anybody, no paths are all."""


def lines(policy: Object) -> set[Line]:
    found = set[Line]()
    for rule in policy["spec"]["rules"]:
        (operation,) = (each["operation"] for each in rule["to"])
        (port,) = operation["ports"]
        principals = [name for each in rule.get("from", ()) for name in each["source"]["principals"]]
        assert "from" not in rule or principals, "an empty list is anybody"
        found.add((frozenset(principals), port, frozenset(operation.get("paths", ()))))
    return found


def policies(objects: list[Object]) -> dict[str, set[Line]]:
    named = {each["metadata"]["name"]: each for each in objects if each["kind"] == "AuthorizationPolicy"}
    assert all(each["spec"]["action"] == "ALLOW" for each in named.values())
    return {name.removeprefix("dexorder-"): lines(each) for name, each in named.items()}


def component(mesh: str) -> list[Object]:
    return list(yaml.load_all((DEPLOY / "kubernetes" / "mesh" / mesh / "policies.yaml").read_text(), yaml.CSafeLoader))


def may_call(found: set[Line], account: str, port: str, path: str) -> bool:
    """Return what Istio decides: one rule that names the caller, the port and the path."""
    name = f"cluster.local/ns/dexorder/sa/{account}"
    return any(
        (not principals or name in principals)
        and port == rule_port
        and (not paths or any(path.startswith(each.removesuffix("*")) for each in paths))
        for principals, rule_port, paths in found
    )


def test_what_is_written_is_fresh() -> None:
    assert write_mesh.main(["--check"]) == 0


def test_every_service_of_the_parts_has_its_row() -> None:
    assert write_mesh.GRPC["relay"] == ROLES
    assert set(write_mesh.GRPC["events"]) == set(events.NAMES)
    package = history_service_pb2.DESCRIPTOR.package
    assert {name for name in ROLES if name.startswith(package)} == {
        f"{package}.{each.stem.title().replace('_', '')}"
        for each in (ROOT / "protos/dexorder/relay/v1").glob("*_service.proto")
    }


@pytest.mark.parametrize(
    ("account", "may", "may_not"),
    [
        ("ingestor", "/dexorder.relay.v1.IngestorService/ReportPage", "/dexorder.relay.v1.PipelineService/ReportJobs"),
        ("spark", "/dexorder.relay.v1.PipelineService/ReportJobs", "/dexorder.relay.v1.IngestorService/ReportPage"),
        ("gateway", "/grpc.health.v1.Health/Check", "/dexorder.relay.v1.PipelineService/ReportJobs"),
        ("stranger", "/grpc.health.v1.Health/Check", "/dexorder.relay.v1.HistoryService/SubmitHistorical"),
    ],
)
def test_accounts_may_call_what_their_role_may(account: str, may: str, may_not: str) -> None:
    relay = policies(component("istio"))["relay"]
    assert may_call(relay, account, "50051", may)
    assert not may_call(relay, account, "50051", may_not)
    assert not may_call(relay, account, "50051", "/dexorder.relay.v1.OperatorService/ControlIngestors")


def test_ports_of_zeromq_are_for_those_who_need_them() -> None:
    for mesh in ("istio", "ambient"):
        found = policies(component(mesh))
        assert may_call(found["relay"], "ingestor", "5567", "")
        for account in ("spark", "gateway", "stranger"):
            assert not may_call(found["relay"], account, "5567", "")
            assert not may_call(found["events"], account, "5571", "")


def test_without_a_look_at_calls_a_stranger_reaches_no_port_but_metrics_and_the_page() -> None:
    for part, found in policies(component("ambient")).items():
        ports = {port for principals, port, _ in found if not principals}
        assert ports == {str(write_mesh.METRICS[part]), *(["8080"] if part == "events" else [])}, part


def linkerd_allows(objects: list[Object]) -> dict[tuple[str, int], frozenset[str] | None]:
    """Return the accounts that may connect to each port of a part; None is anybody."""
    known = {
        (each["kind"], each["metadata"]["name"]): each["spec"]
        for each in objects
        if each["apiVersion"].startswith("policy.linkerd.io/")
    }
    found: dict[tuple[str, int], frozenset[str] | None] = {}
    for (kind, name), spec in known.items():
        if kind != "Server":
            continue
        labels = spec["podSelector"]["matchLabels"]
        place = (labels.get("app") or labels["app.kubernetes.io/component"], spec["port"])
        policy = known.get(("AuthorizationPolicy", name))
        if policy is None:
            found[place] = frozenset()
            continue
        assert policy["targetRef"]["name"] == name
        (ref,) = policy["requiredAuthenticationRefs"]
        proof = known[ref["kind"], ref["name"]]
        accounts = (f"{each.get('namespace', '')}/{each['name']}" for each in proof.get("identityRefs", ()))
        found[place] = None if ref["kind"] == "NetworkAuthentication" else frozenset(accounts)
    return found


def test_linkerd_lets_in_whom_an_ambient_mesh_lets_in() -> None:
    """Both see ports, not calls; a port without a Server would be open to all by Linkerd's default."""
    found = linkerd_allows(component("linkerd"))
    numbers = {(part, number) for part, number in (*write_mesh.GRPC_PORTS.items(), *write_mesh.METRICS.items())}
    numbers |= {(part, write_mesh.OTHER_PORTS[name]) for part, ports in write_mesh.TCP.items() for name in ports}
    assert found.keys() == numbers
    for part, rules in policies(component("ambient")).items():
        for place in (each for each in found if each[0] == part):
            names = [{name.rpartition("/")[2] for name in who} for who, port, _ in rules if port == str(place[1])]
            anybody = any(not who for who in names)
            mine = found[place]
            assert (mine is None) == anybody, place
            if mine is not None:
                assert {name.removeprefix("/") for name in mine} == set().union(*names), place
    assert found["events", 5571] == frozenset() and found["relay", 5567] == frozenset({"/ingestor"})


def test_anybody_may_call_only_what_checks_its_callers_in_another_way() -> None:
    opened = {f"/{name}/*" for name in (*OPEN_SERVICES, *events.OWN_IDENTITY)}
    for found in policies(component("istio")).values():
        paths = {path for principals, _, paths in found if not principals for path in paths}
        assert paths <= opened
    assert set(STAFF) < set(Role), "a client is no staff"


def test_calls_that_may_change_something_twice_are_not_repeated() -> None:
    """Of the three, by name: a proxy that repeats them writes a record twice, or loses one."""
    routes = {
        each["metadata"]["name"]: each["spec"]["http"]
        for each in component("istio")
        if each["kind"] == "VirtualService"
    }
    first, rest = routes["gateway"]
    paths = ["/KafkaPixy/Produce", "/dexorder.kafka.v1.RecordService/ProduceMany", "/KafkaPixy/ConsumeNAck"]
    assert [each["uri"]["exact"] for each in first["match"]] == paths
    assert first["retries"] == {"attempts": 0} and "match" not in rest
    assert {route["timeout"] for http in routes.values() for route in http} == {"0s"}


def shipped() -> Iterator[Path]:
    yield from (DEPLOY / "compose.yaml", *(DEPLOY / "kubernetes").rglob("*.yaml"))
    yield from (path for path in (DEPLOY / "helm").rglob("*") if path.suffix in (".yaml", ".tpl", ".json"))


def test_nothing_insecure_ships() -> None:
    for path in shipped():
        settings = [line for line in path.read_text().splitlines() if "ALLOW_INSECURE" in line.partition("#")[0]]
        assert not settings, path


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("mesh", MESHES)
def test_components_make_pods_that_pass_and_name_only_what_exists(mesh: str, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(f"resources: [kubernetes]\ncomponents: [kubernetes/mesh/{mesh}]\n")
    done = subprocess.run(["kubectl", "kustomize", tmp_path], check=True, capture_output=True)
    objects = list(yaml.load_all(done.stdout, yaml.CSafeLoader))
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    for name, workload in pods(objects):
        template = workload["spec"]["template"]
        assert problems(workload) == [] and template["spec"]["serviceAccountName"] == name and name in accounts
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert ("configMap" in volumes["callers"]) == (mesh == "istio")
        assert volumes["tls"]["secret"].get("optional", False) == (mesh == "istio")
        marks = {**template["metadata"]["annotations"], **template["metadata"]["labels"]}
        assert any(mesh_mark in key for key in marks for mesh_mark in ("istio.io", "linkerd.io")), name
    assert dangling_references(objects) == []
    (security,) = (each["data"] for each in objects if each["metadata"]["name"] == "security")
    assert security["DEXORDER_RELAY_IDENTITY"] == ("forwarded" if mesh == "istio" else "token")


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_the_chart_has_the_policies_of_the_component() -> None:
    for mesh in ("istio", "ambient"):
        objects = rendered("--namespace", "dexorder", "--set", f"mesh={mesh}")
        text = yaml.safe_dump(objects).replace("/sa/dexorder-", "/sa/")
        assert policies(yaml.safe_load(text)) == policies(component(mesh))
    objects = rendered("--namespace", "dexorder", "--set", "mesh=linkerd")
    text = yaml.safe_dump(objects).replace("name: dexorder-", "name: ")
    assert linkerd_allows(yaml.safe_load(text)) == linkerd_allows(component("linkerd"))
    desk = "linkerd.accounts.client[0].name=desk,linkerd.accounts.client[0].namespace=quant"
    allows = linkerd_allows(rendered("--namespace", "dexorder", "--set", f"mesh=linkerd,{desk}"))
    assert {place for place, who in allows.items() if who and "quant/desk" in who} == {
        ("relay", 50051),
        *((part, number) for part, number in write_mesh.GRPC_PORTS.items() if part != "relay"),
    }
