"""The restricted Pod Security Standard, and what our manifests promise beyond it, for parsed YAML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
"""Kinds of volumes that the standard allows."""


def pods(objects: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the name and the workload of each Deployment and StatefulSet."""
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["metadata"]["name"], each


def problems(workload: Object) -> list[str]:
    """Return a phrase for each rule that the pods of a workload break; each names the field."""
    pod: Object = workload["spec"]["template"]["spec"]
    own: Object = pod.get("securityContext", {})
    found = [f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    for volume in pod.get("volumes", []):
        found += [f"volume {volume['name']} is a {kind}" for kind in set(volume) - {"name"} - VOLUMES]
    found += [f"securityContext has {name}" for name in ("sysctls", "seLinuxOptions", "windowsOptions") if name in own]
    if pod.get("automountServiceAccountToken") is not False:
        found.append("automountServiceAccountToken is not false")
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        found += [f"{container['name']}: {each}" for each in _container_problems({**own}, container)]
    return found + _dangling(workload)


def _container_problems(pod: dict[str, Any], container: Object) -> Iterator[str]:
    own: Object = container.get("securityContext", {})
    settings = pod | dict(own)
    capabilities = own.get("capabilities", {})
    for name, wanted in (("runAsNonRoot", True), ("allowPrivilegeEscalation", False), ("readOnlyRootFilesystem", True)):
        if settings.get(name) is not wanted:
            yield f"{name} is {settings.get(name)}"
    if not settings.get("runAsUser"):
        yield f"runAsUser is {settings.get('runAsUser')}"
    if settings.get("privileged"):
        yield "privileged is set"
    if settings.get("procMount", "Default") != "Default":
        yield "procMount is not Default"
    if settings.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile is neither RuntimeDefault nor Localhost"
    if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"capabilities are {capabilities}"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "a hostPort is set"
    if {"name": "tmp", "mountPath": "/tmp"} not in container.get("volumeMounts", []):
        yield "/tmp is not a volume"


def _dangling(workload: Object) -> list[str]:
    """Return the mounts without a volume, and the paths in variables that are in no volume and so can't be written."""
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {each["name"] for each in pod.get("volumes", [])}
    volumes |= {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
    mounts = container.get("volumeMounts", [])
    paths = tuple(each["mountPath"] for each in mounts)
    found = [f"mount {each['name']} has no volume" for each in mounts if each["name"] not in volumes]
    return found + [
        f"{each['name']}: {each['value']} is in no volume"
        for each in container["env"]
        if each.get("value", "").startswith("/") and not each["value"].startswith(paths)
    ]


def dangling_references(objects: Iterable[Object]) -> list[str]:
    """Return the ports, selectors and ConfigMaps that are named in a list of objects and exist nowhere in it."""
    known = list(objects)
    maps = {each["metadata"]["name"] for each in known if each["kind"] == "ConfigMap"}
    workloads = dict(pods(known))
    found = []
    for name, workload in workloads.items():
        template = workload["spec"]["template"]
        if not workload["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
            found.append(f"{name}: its selector does not match its pods")
        (container,) = template["spec"]["containers"]
        used = {each["configMapRef"]["name"] for each in container["envFrom"] if "configMapRef" in each}
        used |= {each["configMap"]["name"] for each in template["spec"]["volumes"] if "configMap" in each}
        found += [f"{name}: ConfigMap {each} does not exist" for each in sorted(used - maps)]
    for service in (each for each in known if each["kind"] == "Service"):
        name, selector = service["metadata"]["name"], service["spec"]["selector"].items()
        chosen = [w for w in workloads.values() if selector <= w["spec"]["template"]["metadata"]["labels"].items()]
        if len(chosen) != 1:
            found.append(f"service {name} selects the pods of {len(chosen)} workloads")
            continue
        (container,) = chosen[0]["spec"]["template"]["spec"]["containers"]
        ports = {str(each[key]) for each in container["ports"] for key in ("name", "containerPort")}
        targets = {str(each.get("targetPort", each["port"])) for each in service["spec"]["ports"]}
        found += [f"service {name}: port {each} is not one of its pods'" for each in sorted(targets - ports)]
    return found
