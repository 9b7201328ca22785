"""Kafka brokers for tests and benchmarks."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from dexorder.supervisor.kafka import HOST, wait_ready
from dexorder.supervisor.orphan_guard import guarded
from tests.paths import ROOT
from tests.rig.processes import free_ports, until

READY_SECONDS = 90
STOP_SECONDS = 60


class RunningKafka:
    """Broker process in ``suite_dir``, started as by the supervisor, with its output in ``kafka.log``."""

    def __init__(
        self,
        suite_dir: Path,
        ports: tuple[int, int] | None = None,
        *,
        advertised_port: int | None = None,
        properties: Callable[[int, int], str] | None = None,
        scram: Sequence[str] = (),
    ) -> None:
        """Start it and wait until it is ready.

        Args:
            ports: Those of an earlier one, else free ones.
            properties: Further settings, given the client's and the controller's port.
            scram: Users to begin with, as kafka-storage has them.
        """
        self.port, controller_port = ports or free_ports(2)
        self.bootstrap = f"{HOST}:{self.port}"
        suite_dir.mkdir(parents=True, exist_ok=True)
        self.log_file = suite_dir / "kafka.log"
        # as under the supervisor, the broker dies with this process, also when a run is killed
        command = [*guarded(), sys.executable, "-m", "dexorder.supervisor.kafka", "--dir", str(suite_dir)]
        command += ["--port", str(self.port), "--controller-port", str(controller_port)]
        if advertised_port is not None:
            command += ["--advertised-port", str(advertised_port)]
        if properties is not None:
            more = suite_dir / "more.properties"
            more.write_text(properties(self.port, controller_port))
            command += ["--properties", str(more)]
        command += [f"--add-scram={user}" for user in scram]
        self._log: IO[bytes] = self.log_file.open("ab")
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            wait_ready(self.bootstrap, READY_SECONDS)
        except TimeoutError as error:
            self.stop(signal.SIGKILL)
            raise AssertionError(f"{error}; its log: {self.log_file.read_text()[-2000:]}") from None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal the broker, wait for its end and return its exit status."""
        self.process.send_signal(how)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self._log.close()


def create_topic(bootstrap: str, partitions: int, name: str = "", config: dict[str, str] | None = None) -> str:
    """Create a topic, by default with a unique name, and return its name once the broker serves it.

    The controller says that a topic is made before the broker has heard of it.
    """
    name = name or f"test-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    until(lambda: _created(admin, topic), explain=lambda: f"the broker does not create {name}")
    until(lambda: _serves(admin, name, partitions), explain=lambda: f"the broker does not serve {name}")
    return name


def _created(admin: AdminClient, topic: NewTopic) -> bool:
    """Create a topic; False while the controller counts no broker, which happens when the machine stands still."""
    try:
        admin.create_topics([topic])[topic.topic].result(timeout=30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
            raise
        return False
    return True


def _serves(admin: AdminClient, topic: str, partitions: int) -> bool:
    try:
        found = admin.list_topics(timeout=30).topics.get(topic)
    except KafkaException:  # no answer in time
        return False
    return (
        found is not None
        and found.error is None
        and len(found.partitions) == partitions
        and all(partition.leader >= 0 for partition in found.partitions.values())
        and _leads(admin, topic, found.partitions)
    )


def _leads(admin: AdminClient, topic: str, partitions: Iterable[int]) -> bool:
    """Return whether the broker answers as the leader of partitions; it is named as such before it knows."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    futures = admin.list_offsets({TopicPartition(topic, each): latest for each in partitions}, request_timeout=30)
    return all(future.exception(30) is None for future in futures.values())
