"""A cluster of two brokers, of which the second one can be killed."""

from __future__ import annotations

import signal
from pathlib import Path

from confluent_kafka.admin import AdminClient

from dexorder.supervisor.kafka import HOST, new_cluster_id
from tests.rig.kafka import RunningKafka
from tests.rig.processes import free_ports, until


class TwoBrokers:
    """Cluster of two brokers; the first is the controller too. The groups' offsets are on both."""

    SETTINGS = "offsets.topic.replication.factor=2\ngroup.min.session.timeout.ms=1000\n"

    def __init__(self, folder: Path) -> None:
        self.second_data = folder / "2/kafka/data"
        self._folder = folder
        first, controller, second, unused = free_ports(4)
        self._second_ports = second, unused
        self._voters = f"1@{HOST}:{controller}"
        self.first = RunningKafka(folder / "1", (first, controller), properties=lambda *_: self.SETTINGS)
        meta = (folder / "1/kafka/data/meta.properties").read_text()
        data = self.second_data
        data.mkdir(parents=True)
        lines = [line for line in meta.splitlines() if not line.startswith(("node.id", "directory.id"))]
        (data / "meta.properties").write_text("\n".join([*lines, "node.id=2", f"directory.id={new_cluster_id()}", ""]))
        self.second: RunningKafka | None = None
        self.start_second()
        self.bootstrap = f"{self.first.bootstrap},{HOST}:{second}"

    def start_second(self) -> None:
        """Start the second broker, and wait until the cluster has both."""

        def settings(port: int, _: int) -> str:
            own = f"process.roles=broker\nnode.id=2\nlisteners=PLAINTEXT://{HOST}:{port}\n"
            return f"{self.SETTINGS}{own}controller.quorum.voters={self._voters}\n"

        self.second = RunningKafka(self._folder / "2", self._second_ports, properties=settings)
        admin = AdminClient({"bootstrap.servers": self.first.bootstrap})
        until(lambda: len(admin.list_topics(timeout=10).brokers) == 2)

    def kill_second(self) -> None:
        """Kill the second broker; its partitions have no leader then."""
        if self.second is not None:
            self.second.stop(signal.SIGKILL)
            self.second = None

    def stop(self) -> None:
        """Kill both."""
        self.kill_second()
        self.first.stop(signal.SIGKILL)
