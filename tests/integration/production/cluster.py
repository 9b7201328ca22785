"""Standalone Spark cluster on loopback, and the connections of its processes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from dexorder.setup.java import java_env
from tests.integration.production.servers import HOST, process
from tests.paths import ROOT
from tests.rig.processes import free_ports

BIN = Path(pyspark.__file__).parent / "bin"


@dataclass(frozen=True)
class Cluster:
    """Address of the cluster, and the process ids of its workers."""

    master: str
    workers: tuple[int, ...]


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Run a master and workers of one core each, with logs and work folders below ``folder``."""
    master_port, master_ui, *ports = free_ports(2 + 2 * workers)
    environment = java_env() | {"SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
    deploy = [str(BIN / "spark-class"), "org.apache.spark.deploy"]
    address = f"spark://{HOST}:{master_port}"
    with ExitStack() as stack:
        command = [deploy[0], f"{deploy[1]}.master.Master", "--host", HOST]
        command += ["--port", str(master_port), "--webui-port", str(master_ui)]
        stack.enter_context(process(command, folder / "master.log", master_port, environment=environment))
        pids = []
        for number, (port, web) in enumerate(zip(ports[::2], ports[1::2], strict=True)):
            command = [deploy[0], f"{deploy[1]}.worker.Worker", "--host", HOST, "--port", str(port)]
            command += ["--webui-port", str(web), "--cores", "1", "--memory", "1g"]
            command += ["--work-dir", str(folder / f"work{number}"), address]
            log = folder / f"worker{number}.log"
            pids.append(stack.enter_context(process(command, log, port, environment=environment)).pid)
        yield Cluster(address, tuple(pids))


def connected_to(port: int) -> set[int]:
    """Return the processes with an open connection to a port of this machine."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "01" and int(columns[2].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{columns[9]}]")
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has been closed
            if str(link.readlink()) in inodes:
                found.add(int(link.parts[2]))
    return found


def descends_from(pid: int, ancestor: int) -> bool:
    """Return whether a process is a descendant of another."""
    while pid > 1 and pid != ancestor:
        pid = _parent(pid)
    return pid == ancestor


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [child for path in Path("/proc").glob("[0-9]*") if _parent(child := int(path.name)) == pid]


def _parent(pid: int) -> int:
    """Return the id of the parent process; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@contextmanager
def submitted(
    cluster: Cluster, folder: Path, source: str, relay: str, health_port: int, **settings: str
) -> Iterator[None]:
    """Start our driver by the commands of docs/production.md, and wait until its gRPC port is open."""
    commands = _documented_commands(
        {
            "spark://master:7077": cluster.master,
            "udsource:50052": source,
            "relay:50051": relay,
            "/path/of/python3.11": sys.executable,
            "dexorder.zip": str(folder / "dexorder.zip"),
            "--executor-memory 2g": "--executor-memory 512m",
            "spark-submit": f"exec {BIN / 'spark-submit'}",
        }
    )
    own = {"SPARK_LOCAL_IP": HOST, "DEXORDER_SPARK_LISTEN": f"{HOST}:{health_port}"}
    command = ["bash", "-ec", commands]
    with process(command, folder / "driver.log", health_port, environment=java_env() | own | settings):
        yield


def _documented_commands(here: Mapping[str, str]) -> str:
    """Return the page's commands for ``spark-submit`` with this machine's names for those of the page."""
    page = (ROOT / "docs" / "production.md").read_text()
    (commands,) = (block for block in re.findall(r"^```\n(.*?)^```", page, re.M | re.S) if "spark-submit" in block)
    for documented, name in here.items():
        assert documented in commands, f"docs/production.md no longer has {documented}"
        commands = commands.replace(documented, name)
    return str(commands)


@contextmanager
def started(
    cluster: Cluster, folder: Path, source: str, relay: str, health_port: int, **settings: str
) -> Iterator[None]:
    """Start our driver as a process that requests executors of the cluster."""
    own = {"DEXORDER_SPARK_MASTER": cluster.master, "DEXORDER_SPARK_SOURCE": source, "DEXORDER_SPARK_RELAY": relay}
    own |= {"SPARK_LOCAL_IP": HOST, "DEXORDER_SPARK_LISTEN": f"{HOST}:{health_port}"}
    command = [sys.executable, "-m", "dexorder_spark"]
    with process(command, folder / "driver.log", health_port, environment=own | settings):
        yield
