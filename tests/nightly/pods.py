"""Parts as ``deploy/kubernetes`` and ``deploy/compose.yaml`` start them, as confined processes of this machine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dexorder.setup import config
from dexorder.supervisor.orphan_guard import guarded
from tests.confined import UID, confined, own_folder
from tests.paths import ROOT

MANIFESTS = ROOT / "deploy" / "kubernetes"
COMPOSE = ROOT / "deploy" / "compose.yaml"
STOP_SECONDS = 90


@dataclass(frozen=True)
class Container:
    """Container of a part in the manifests."""

    command: list[str]
    env: Mapping[str, str]
    volumes: frozenset[str]
    """Folders where a volume is mounted that the part may write."""


def read_container(part: str) -> Container:
    """Return a part's container with its variables, those of ConfigMaps included and those of Secrets left out.

    ``security`` is left out as well: its files are in Secrets, and the parts listen on loopback here.
    """
    maps = {
        each["metadata"]["name"]: each["data"]
        for each in yaml.safe_load_all((MANIFESTS / "settings.yaml").read_text())
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] != "security"
    }
    workload = next(
        each
        for each in yaml.safe_load_all((MANIFESTS / f"{part}.yaml").read_text())
        if each["kind"] in ("Deployment", "StatefulSet")
    )
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env: dict[str, str] = {}
    for source in container["envFrom"]:
        env |= maps.get(source.get("configMapRef", {}).get("name"), {})
    env |= {each["name"]: each["value"] for each in container["env"] if "value" in each}
    read_only = {each["name"] for each in pod["volumes"] if "configMap" in each or "secret" in each}
    mounts = {each["mountPath"] for each in container["volumeMounts"] if each["name"] not in read_only}
    return Container(container["command"], env, frozenset(mounts))


def read_service(part: str) -> Container:
    """Return a part's container of the compose file, with the defaults of its own variables."""
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"][part]
    env = {name: re.sub(r"^\$\{\w+:[-?](.*)\}$", r"\1", str(value)) for name, value in service["environment"].items()}
    mounts = [each.rpartition("}")[2].split(":")[1:] for each in service["volumes"]]
    return Container(service["command"], env, frozenset(place for place, *mode in mounts if mode != ["ro"]))


class Pod:
    """Running part.

    Args:
        folder: Gets its log and, in ``volumes``, its volumes but ``/tmp``, which is one of the name space.
        replaced: Texts in the values of variables and what stands for them here: addresses and mounted folders.
        env: Further variables, and others than the manifest's.
        writable: Further folders that it may write, such as a warehouse.
        readable: Files of ConfigMaps.
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
        texts = {**replaced, **{mount: str(path) for mount, path in volumes.items()}}
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
            readable=[*readable, cache],
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


def _is_own(path: Path) -> bool:
    return path.stat().st_uid == UID


def _replace(value: str, texts: Mapping[str, str]) -> str:
    for text, other in texts.items():
        value = value.replace(text, other, 1)  # a file may have the name of its folder
    return value
