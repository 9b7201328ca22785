"""Archive of the classes that Kafka's broker loads; see `dexorder.setup.class_archive`.

``python -m dexorder.supervisor.kafka_archive``, which ``make classes`` calls, runs a broker with one record and writes
the archive. Kafka's tool that formats its log folder uses the same archive.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dexorder.setup import class_archive
from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.supervisor import kafka

_MODULE = "dexorder.supervisor.kafka_archive"
_TIMEOUT_S = 60


def run_broker(new: Path) -> None:
    """Write a record and read it in a group, with a broker that archives its classes when it ends."""
    port, controller_port = _free_ports()
    command = kafka.prepare(new.parent, port=port, controller_port=controller_port)
    command[1:1] = class_archive.options_to_write(new)
    broker = subprocess.Popen(command)
    try:
        bootstrap = f"{kafka.HOST}:{port}"
        kafka.wait_ready(bootstrap, _TIMEOUT_S)
        _write_and_read(bootstrap)
        broker.send_signal(signal.SIGTERM)
        broker.wait(_TIMEOUT_S)
    finally:
        broker.kill()
        broker.wait()


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((kafka.HOST, 0))) for _ in range(2)]
        return [each.getsockname()[1] for each in sockets]


def _write_and_read(bootstrap: str) -> None:
    topic = "any"
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must live until the result
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"any")
    producer.flush(_TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    if consumer.poll(_TIMEOUT_S) is not None:
        consumer.commit(asynchronous=False)
    consumer.close()


def main() -> int:
    """Write the archive if it does not exist."""
    try:
        program = class_archive.kafka_program(jar_folder("kafka"))
    except SetupError as error:
        print(f"{_MODULE}: {error}", file=sys.stderr)
        return 1
    return class_archive.main(_MODULE, program, run_broker)


if __name__ == "__main__":
    sys.exit(main())
