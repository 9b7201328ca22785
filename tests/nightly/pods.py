"""Parts as a cluster with Kubernetes' objects and ``deploy/compose.yaml`` start them, as confined processes here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dexorder.setup import config
from dexorder.supervisor.orphan_guard import guarded
from tests.confined import UID, confined, own_folder
from tests.paths import ROOT

COMPOSE = ROOT / "deploy" / "compose.yaml"
STOP_SECONDS = 90


Contents = Mapping[str, str]
"""Keys of a Secret or ConfigMap with their values."""


@dataclass(frozen=True)
class Container:
    """Container of a part in the manifests."""

    command: list[str]
    env: Mapping[str, str]
    volumes: frozenset[str]
    """Folders where a volume is mounted that the part may write."""
    files: Mapping[str, Contents] = field(default_factory=dict)
    """Files of Secrets and ConfigMaps by their path, by the folder where these are mounted."""


def read_container(objects: Iterable[Mapping[str, Any]], secrets: Mapping[str, Contents], part: str) -> Container:
    """Return a part's container with all its variables and files, as a kubelet would read them.

    Args:
        objects: Objects of the manifests; the workload's container has the name of the part.
        secrets: Secrets of the namespace, which are not among the objects.

    Raises:
        KeyError: A name or key that is not optional exists nowhere.
    """
    objects = list(objects)
    maps = {each["metadata"]["name"]: each["data"] or {} for each in objects if each["kind"] == "ConfigMap"}
    pod = next(found for each in objects if (found := _pod(each)) and found["containers"][0]["name"] == part)
    (container,) = pod["containers"]
    env: dict[str, str] = {}
    for source in container["envFrom"]:
        for kind, known in (("configMapRef", maps), ("secretRef", secrets)):
            if reference := source.get(kind):
                env |= known.get(reference["name"], {}) if reference.get("optional") else known[reference["name"]]
    for each in container["env"]:
        reference = each.get("valueFrom", {}).get("secretKeyRef")
        env[each["name"]] = secrets[reference["name"]][reference["key"]] if reference else each["value"]
    files, volumes = {}, {each["name"]: each for each in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})  # that of a claim's template is not there
        if "secret" in volume:
            files[mount["mountPath"]] = _items(volume["secret"], secrets[volume["secret"]["secretName"]])
        elif "configMap" in volume:
            files[mount["mountPath"]] = _items(volume["configMap"], maps[volume["configMap"]["name"]])
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    return Container(container["command"], env, frozenset(mounts - set(files)), files)


def _pod(each: Mapping[str, Any]) -> dict[str, Any] | None:
    return each["spec"]["template"]["spec"] if each["kind"] in ("Deployment", "StatefulSet") else None


def _items(source: Mapping[str, Any], data: Contents) -> Contents:
    """Return a volume's files: each key is one, unless ``items`` names those to mount."""
    return {each["path"]: data[each["key"]] for each in source["items"]} if "items" in source else data


def read_service(part: str) -> Container:
    """Return a part's container of the compose file, with the defaults of its own variables."""
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"][part]
    env = {name: re.sub(r"^\$\{\w+:[-?](.*)\}$", r"\1", str(value)) for name, value in service["environment"].items()}
    mounts = [each.rpartition("}")[2].split(":")[1:] for each in service["volumes"]]
    return Container(service["command"], env, frozenset(place for place, *mode in mounts if mode != ["ro"]))


class Pod:
    """Running part.

    Args:
        folder: Gets its log; in ``volumes`` its volumes but ``/tmp``, which is one of the name space; in ``mounts`` the
            files of Secrets and ConfigMaps, which nobody but its user reads.
        replaced: Texts in the values of variables and what stands for them here: addresses and mounted folders.
        env: Further variables, and others than the manifest's.
        writable: Further folders that it may write, such as a warehouse.
        readable: Further folders that it may read.
    """

    def __init__(
        self,
        part: str,
        container: Container,
        folder: Path,
        replaced: Mapping[str, str],
        env: dict[str, str],
        *,
        writable: list[Path],
        readable: list[Path],
    ) -> None:
        volumes = {each: own_folder(folder / "volumes" / each.strip("/")) for each in container.volumes - {"/tmp"}}
        mounted = {
            each: _written(folder / "mounts" / each.strip("/"), files) for each, files in container.files.items()
        }
        texts = {**replaced, **{mount: str(path) for mount, path in (volumes | mounted).items()}}
        values = {name: _replace(value, texts) for name, value in container.env.items()} | env
        cache = config.load().cache_dir
        environment = {
            "HOME": "/home/dexorder",
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "DEXORDER_CACHE": str(cache),  # jars are in the image
            **values,
        }
        self.log_file = folder / f"{part}.log"
        command = confined(
            [sys.executable, *container.command[1:]],
            writable=[*volumes.values(), *writable],
            readable=[*readable, *mounted.values(), cache],
        )
        assert container.command[0] == "python"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen([*guarded(), *command], env=environment, stdout=log, stderr=log)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log_file.read_text(errors="replace")[-4000:]

    def uid(self) -> int:
        """Return the user of the process."""
        return Path(f"/proc/{self.process.pid}").stat().st_uid

    def temporary_files(self) -> list[str]:
        """Return the names in its ``/tmp`` besides the mounted folders."""
        folder = Path(f"/proc/{self.process.pid}", "root", "tmp")
        return sorted(each.name for each in folder.iterdir() if _is_own(each))

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.process.kill()
        self.process.wait()


def _written(folder: Path, files: Contents) -> Path:
    """Write the files of a mount, which belong to the confined user, and return its folder."""
    own_folder(folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for each in folder.rglob("*"):
        each.chmod(0o500 if each.is_dir() else 0o400)
        os.chown(each, UID, UID)
    return folder


def _is_own(path: Path) -> bool:
    return path.stat().st_uid == UID


def _replace(value: str, texts: Mapping[str, str]) -> str:
    for text, other in texts.items():
        value = value.replace(text, other, 1)  # a file may have the name of its folder
    return value
