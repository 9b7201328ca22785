"""Clusters of several brokers, of which all but the first one can be killed."""

from __future__ import annotations

import signal
from pathlib import Path

from confluent_kafka.admin import AdminClient

from dexorder.supervisor.kafka import HOST, new_cluster_id
from tests.rig.kafka import RunningKafka
from tests.rig.processes import free_ports, until


class KafkaCluster:
    """Brokers with the numbers 1 to ``brokers``; the first is the controller too. The groups' offsets are on all.

    Attributes:
        running: Brokers that run, without the first one.
    """

    def __init__(self, folder: Path, brokers: int) -> None:
        self._folder = folder
        self.settings = f"offsets.topic.replication.factor={brokers}\ngroup.min.session.timeout.ms=1000\n"
        first, controller, *ports = free_ports(2 * brokers)
        self._ports = {number: (ports.pop(), ports.pop()) for number in range(2, brokers + 1)}
        self._voters = f"1@{HOST}:{controller}"
        self.first = RunningKafka(folder / "1", (first, controller), properties=lambda *_: self.settings)
        meta = (folder / "1/kafka/data/meta.properties").read_text()
        lines = [line for line in meta.splitlines() if not line.startswith(("node.id", "directory.id"))]
        self.running: dict[int, RunningKafka] = {}
        for number in self._ports:
            data = self.data(number)
            data.mkdir(parents=True)
            own = [f"node.id={number}", f"directory.id={new_cluster_id()}", ""]
            (data / "meta.properties").write_text("\n".join([*lines, *own]))
            self.start(number)
        self.bootstrap = ",".join([self.first.bootstrap, *(f"{HOST}:{port}" for port, _ in self._ports.values())])

    def data(self, number: int) -> Path:
        """Return the folder of a broker's log."""
        return self._folder / f"{number}/kafka/data"

    def start(self, number: int) -> None:
        """Start a broker, and wait until the cluster has it."""

        def settings(port: int, _: int) -> str:
            own = f"process.roles=broker\nnode.id={number}\nlisteners=PLAINTEXT://{HOST}:{port}\n"
            return f"{self.settings}{own}controller.quorum.voters={self._voters}\n"

        self.running[number] = RunningKafka(self._folder / str(number), self._ports[number], properties=settings)
        admin = AdminClient({"bootstrap.servers": self.first.bootstrap})
        until(lambda: number in admin.list_topics(timeout=10).brokers)

    def kill(self, number: int) -> None:
        """Kill a broker, if it runs."""
        if (broker := self.running.pop(number, None)) is not None:
            broker.stop(signal.SIGKILL)

    def stop(self) -> None:
        """Kill all."""
        for number in self._ports:
            self.kill(number)
        self.first.stop(signal.SIGKILL)


class TwoBrokers(KafkaCluster):
    """Cluster of two brokers; partitions of the second one have no leader while it is dead."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2)
        self.second_data = self.data(2)

    @property
    def second(self) -> RunningKafka | None:
        """Return the second broker if it runs."""
        return self.running.get(2)

    def start_second(self) -> None:
        """Start the second broker, and wait until the cluster has both."""
        self.start(2)

    def kill_second(self) -> None:
        """Kill the second broker."""
        self.kill(2)
