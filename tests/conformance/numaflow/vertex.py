"""udsource as a Numaflow pod starts it, and its state in Kafka."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.peers.numaflow_reader import NumaflowReader
from tests.rig.processes import ServiceProcess

StartUdsource = Callable[..., "Udsource"]


class Udsource(ServiceProcess):
    """``python -m dexorder_udsource`` with a folder of its own where Numaflow mounts its volume; it and its
    readers die with us. The consumer group has the topic's name.

    Args:
        run: That folder; made if it is not there.
        log: Gets its log; nobody else's.
        settings: As in UdsourceSettings.
        module: What is started in its place.
    """

    def __init__(
        self,
        run: Path,
        log: Path,
        *,
        kafka: str,
        topic: str,
        module: str = "dexorder_udsource",
        **settings: Any,
    ) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.socket = run / "source.sock"
        self.info = run / "sourcer-server-info"
        self.kafka = kafka
        self.topic = topic
        self._readers: list[NumaflowReader] = []
        self._numbers = itertools.count()
        self._log = log
        values = {
            "numaflow_folder": run,
            "kafka": kafka,
            "topic": topic,
            "group": topic,
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "drain_seconds": 60,
            **settings,
        }
        super().__init__(module, log, {f"DEXORDER_UDSOURCE_{name.upper()}": str(v) for name, v in values.items()})

    def connect(self) -> NumaflowReader:
        """Return a dataplane that has made its handshakes."""
        reader = NumaflowReader(self.socket, self._log / f"reader-{next(self._numbers)}.log")
        self._readers.append(reader)
        return reader

    def committed(self, partition: int = 0) -> int | None:
        """Return the commits of the group."""
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": self.topic, "log_level": 2})
        try:
            (found,) = consumer.committed([TopicPartition(self.topic, partition)], timeout=60)
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.kill()
        self.kill()
