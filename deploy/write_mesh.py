"""Write which roles may call which methods, from the code's role tables, for the policies of a mesh.

``deploy/helm/files/access.yaml`` is read by the chart; ``deploy/kubernetes/mesh`` has the components of kustomize.
``python deploy/write_mesh.py`` writes all of them, ``--check`` fails where one is not fresh.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dexorder_common.rpc.identity import OPEN_SERVICES, SERVER_INFO, STAFF, Role
from dexorder_gateway.events import service as events
from dexorder_relay.access import ROLES

DEPLOY = Path(__file__).resolve().parent
NAMESPACE, TRUST_DOMAIN = "dexorder", "cluster.local"
Rule = dict[str, Any]
Services = Mapping[str, Collection[Role | str] | None]
"""Who may call each service; None is anybody, as the service checks its callers in another way."""

_EVENTS: Services = {name: None if name in events.OWN_IDENTITY else events.ROLES[name] for name in events.NAMES}
GRPC: Mapping[str, Services] = {
    "relay": ROLES,
    "gateway": {
        "KafkaPixy": (*STAFF, "gateway"),  # gateways forward acks to each other
        "dexorder.kafka.v1.RecordService": STAFF,
    },
    "events": _EVENTS,
    "udsource": {"source.v1.Source": STAFF},
    "ingestor": {},
    "spark": {"dexorder.pipeline.v1.MaintenanceService": STAFF},
}
"""The gRPC services of each part."""
TCP: Mapping[str, Mapping[str, Collection[Role | str] | None]] = {
    "relay": {"broker": (Role.INGESTOR,)},
    "events": {"fast": ("events",), "guaranteed": ("events",), "web": None},
}
"""Who may connect to the other ports of a part. Anybody may read metrics."""
PARTS = {"relay": ("client",), "gateway": ("gateway",), "ingestor": ("ingestor",), "spark": ("pipeline",)}
"""The roles of the parts themselves."""
GRPC_PORTS = {"relay": 50051, "udsource": 50052, "gateway": 50053, "events": 50053, "ingestor": 50054, "spark": 50055}
OTHER_PORTS = {"broker": 5567, "fast": 5570, "guaranteed": 5571, "web": 8080}
METRICS = {"relay": 9464, "ingestor": 9465, "gateway": 9466, "events": 9466, "udsource": 9467, "spark": 9468}
NOT_REPEATED = ("/KafkaPixy/Produce", "/dexorder.kafka.v1.RecordService/ProduceMany", "/KafkaPixy/ConsumeNAck")
LINKERD = "policy.linkerd.io"
RETRY_ON = "connect-failure,refused-stream,unavailable,cancelled"


def access() -> dict[str, Any]:
    """Return for each part the rules of its ports: who may call which paths."""
    return {part: {"grpc": [*_rules(services)], **_tcp(part)} for part, services in GRPC.items()}


def _rules(services: Services) -> Iterator[Rule]:
    for name, roles in services.items():
        yield {**_who(roles), "paths": [f"/{name}/*"]}
    yield {"roles": [*map(str, Role), "gateway"], "paths": [f"/{SERVER_INFO}/*"]}
    yield {"paths": [f"/{name}/*" for name in sorted(OPEN_SERVICES)]}


def _tcp(part: str) -> dict[str, list[Rule]]:
    return {port: [_who(roles)] for port, roles in TCP.get(part, {}).items()}


def _who(roles: Collection[Role | str] | None) -> Rule:
    return {} if roles is None else {"roles": [*map(str, roles)]}


def principal(account: str) -> str:
    """Return the mesh's name of an account of the suite's namespace."""
    return f"{TRUST_DOMAIN}/ns/{NAMESPACE}/sa/{account}"


def _accounts(roles: Collection[str]) -> list[str]:
    return sorted(part for part, own in PARTS.items() if set(own) & set(roles))


def _principals(roles: Collection[str]) -> list[str]:
    return [principal(account) for account in _accounts(roles)]


def _object(kind: str, name: str, spec: Rule, version: str = "security.istio.io/v1") -> Rule:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _selector(part: str) -> Rule:
    return {"selector": {"matchLabels": {"app": part}}}


def _pods_of(part: str) -> Rule:
    return {"podSelector": {"matchLabels": {"app": part}}}


def _port(part: str, name: str) -> str:
    return str(GRPC_PORTS[part] if name == "grpc" else OTHER_PORTS[name])


def policy(part: str, ports: Mapping[str, list[Rule]], *, by_path: bool) -> Rule:
    """Return the AuthorizationPolicy of a part: a line for each row of the role table."""
    rules: list[Rule] = [{"to": [{"operation": {"ports": [str(METRICS[part])]}}]}]
    for name, rows in ports.items():
        for row in rows if by_path else _merged(rows):
            operation = {"ports": [_port(part, name)], **({"paths": row["paths"]} if "paths" in row else {})}
            if "roles" not in row:
                rules.append({"to": [{"operation": operation}]})
            elif found := _principals(row["roles"]):
                rules.append({"from": [{"source": {"principals": found}}], "to": [{"operation": operation}]})
    return _object("AuthorizationPolicy", part, {**_selector(part), "action": "ALLOW", "rules": rules})


def _merged(rows: list[Rule]) -> list[Rule]:
    """Return one row for a port whose calls the mesh does not see: everybody whom one of the rows lets in.

    Health and reflection are open to all where the mesh sees calls; here they are to those who may call at all.
    """
    if all("roles" not in row for row in rows):
        return [{}]
    return [{"roles": sorted({role for row in rows for role in row.get("roles", ())})}]


def peer_authentication(part: str) -> Rule:
    """Return the demand for the mesh's TLS on all ports but that of metrics, which Prometheus may read in plaintext."""
    spec = {
        **_selector(part),
        "mtls": {"mode": "STRICT"},
        "portLevelMtls": {str(METRICS[part]): {"mode": "PERMISSIVE"}},
    }
    return _object("PeerAuthentication", part, spec)


def linkerd_port(part: str, number: int, rules: list[Rule]) -> list[Rule]:
    """Return Linkerd's objects for a port of a part: the port, and who may connect to it.

    With `security: tls` the proxy sees bytes, so a port has one rule, as in an ambient mesh. A port that no account of
    the suite calls lets nobody in until another AuthorizationPolicy names its Server.
    """
    name = f"{part}-{number}"
    spec = {**_pods_of(part), "port": number, "proxyProtocol": "HTTP/1" if number in METRICS.values() else "opaque"}
    server = _object("Server", name, spec, f"{LINKERD}/v1beta3")
    (row,) = _merged(rules)
    if "roles" not in row:
        return [server, _linkerd_policy(name, "NetworkAuthentication", "anyone")]
    accounts = _accounts(row["roles"])
    if not accounts:
        return [server]
    refs = [{"kind": "ServiceAccount", "name": account} for account in accounts]
    known = _object("MeshTLSAuthentication", name, {"identityRefs": refs}, f"{LINKERD}/v1alpha1")
    return [server, known, _linkerd_policy(name, "MeshTLSAuthentication", name)]


def linkerd() -> list[Rule]:
    """Return the policies of a Linkerd mesh."""
    networks = [{"cidr": "0.0.0.0/0"}, {"cidr": "::/0"}]
    found = [_object("NetworkAuthentication", "anyone", {"networks": networks}, f"{LINKERD}/v1alpha1")]
    for part, ports in access().items():
        found += linkerd_port(part, METRICS[part], [{}])
        for name, rows in ports.items():
            found += linkerd_port(part, int(_port(part, name)), rows)
    return found


def _linkerd_policy(server: str, kind: str, name: str) -> Rule:
    target = {"group": LINKERD, "kind": "Server", "name": server}
    spec = {"targetRef": target, "requiredAuthenticationRefs": [{"group": LINKERD, "kind": kind, "name": name}]}
    return _object("AuthorizationPolicy", server, spec, f"{LINKERD}/v1alpha1")


def destination(part: str) -> Rule:
    """Return how callers' sidecars reach a part."""
    tcp = {"tcpKeepalive": {"time": "30s", "interval": "10s", "probes": 3}}
    spec = {"host": part, "trafficPolicy": {"tls": {"mode": "ISTIO_MUTUAL"}, "connectionPool": {"tcp": tcp}}}
    return _object("DestinationRule", part, spec, "networking.istio.io/v1")


def service_routes(part: str) -> Rule:
    """Return timeouts and retries by method: no timeout, and no repeat of a call that may have changed something."""
    to = [{"destination": {"host": part}}]  # at the port that was called
    rest = {"route": to, "timeout": "0s", "retries": {"attempts": 2, "retryOn": RETRY_ON}}
    once = {
        "match": [{"uri": {"exact": path}} for path in NOT_REPEATED],
        "route": to,
        "timeout": "0s",
        "retries": {"attempts": 0},
    }
    http = [once, rest] if part == "gateway" else [rest]
    return _object("VirtualService", part, {"hosts": [part], "http": http}, "networking.istio.io/v1")


PREFIXES = ("relay", "gateway", "udsource", "ingestor", "spark")
"""Parts by the names of their variables; user events are a gateway."""


def callers() -> Rule:
    """Return the callers files under a mesh: gateways call each other, and are known to no other part."""
    roles = {"relay": "client", "ingestor": "ingestor", "spark": "pipeline"}
    known = [{"client_id": part, "uri": f"spiffe://{principal(part)}", "role": role} for part, role in roles.items()]
    gateway = {"client_id": "gateway", "uri": f"spiffe://{principal('gateway')}", "role": "pipeline"}
    data = {
        f"{part}.yaml": yaml.safe_dump({"callers": [*known, *([gateway] * (part == "gateway"))]}, sort_keys=False)
        for part in PREFIXES
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mesh-callers"}, "data": data}


def settings() -> dict[str, str]:
    """Return the variables with which the parts take their callers from the sidecars."""
    found = {f"DEXORDER_{part.upper()}_IDENTITY": "forwarded" for part in PREFIXES}
    return found | {f"DEXORDER_{part.upper()}_TOKENS": f"/callers/{part}.yaml" for part in PREFIXES}


_WORKLOADS = {"kind": "(Deployment|StatefulSet)"}
OPAQUE = "5567,5570,5571,9092"
_ISTIO = {"sidecar.istio.io/nativeSidecar": "true"}
_LINKERD = {
    "linkerd.io/inject": "enabled",
    "config.linkerd.io/opaque-ports": OPAQUE,
    "config.beta.linkerd.io/proxy-enable-native-sidecar": "true",
}


def _patch(target: Rule, change: Rule) -> Rule:
    version = "v1" if target["kind"] == "Service" else "apps/v1"
    named = {"apiVersion": version, "kind": "Any", "metadata": {"name": "any"}, **change}
    return {"target": target, "patch": yaml.safe_dump(named, sort_keys=False)}


def _pods(change: Rule) -> Rule:
    return _patch(_WORKLOADS, {"spec": {"template": change}})


def _component(patches: list[Rule], *resources: str) -> Rule:
    head = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    return {**head, **({"resources": [*resources]} if resources else {}), "patches": patches}


def _without_secrets() -> list[Rule]:
    """Return the patches that take the callers from the sidecars instead of from certificates and tokens."""
    volumes: list[Rule] = [
        {"name": each, "secret": {"secretName": each, "optional": True}} for each in ("tls", "curve")
    ]
    volumes.append({"name": "callers", "secret": None, "configMap": {"name": "mesh-callers"}})
    replaced: list[Rule] = [
        {
            "target": {"kind": "ConfigMap", "name": name},
            "patch": yaml.safe_dump([{"op": "replace", "path": "/data", "value": data}], sort_keys=False),
        }
        for name, data in (("security", settings()), ("security-events", {}))
    ]
    return [*replaced, _pods({"spec": {"volumes": volumes}})]


def components() -> dict[str, list[Rule]]:
    """Return the files below ``deploy/kubernetes/mesh``, each with its documents."""
    rules = access()
    istio = [callers(), *(policy(part, ports, by_path=True) for part, ports in rules.items())]
    ambient = [policy(part, ports, by_path=False) for part, ports in rules.items()]
    for part in GRPC:
        istio += [peer_authentication(part), destination(part), service_routes(part)]
        ambient.append(peer_authentication(part))
    sidecars = {"metadata": {"annotations": _ISTIO, "labels": {"sidecar.istio.io/inject": "true"}}}
    by_node = {"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}}
    in_linkerd = [_pods({"metadata": {"annotations": _LINKERD}})]
    on_services = {"metadata": {"name": "any", "annotations": {"config.linkerd.io/opaque-ports": OPAQUE}}}
    in_linkerd.append(_patch({"kind": "Service"}, on_services))
    return {
        "istio/kustomization.yaml": [_component([_pods(sidecars), *_without_secrets()], "policies.yaml")],
        "istio/policies.yaml": istio,
        "ambient/kustomization.yaml": [_component([_pods(by_node)], "policies.yaml")],
        "ambient/policies.yaml": ambient,
        "linkerd/kustomization.yaml": [_component(in_linkerd, "policies.yaml")],
        "linkerd/policies.yaml": linkerd(),
    }


def files() -> dict[Path, str]:
    """Return every file that this module writes."""
    found = {DEPLOY / "kubernetes" / "mesh" / name: _yaml(documents) for name, documents in components().items()}
    return {DEPLOY / "helm" / "files" / "access.yaml": _yaml([access()]), **found}


def _yaml(documents: list[Rule]) -> str:
    head = "# Written by deploy/write_mesh.py from the role tables of the code.\n"
    return head + yaml.safe_dump_all(documents, sort_keys=False, width=140)


def main(arguments: list[str]) -> int:
    """Write the files, or say which are not fresh."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(DEPLOY.parent)} is not fresh: python deploy/write_mesh.py", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
