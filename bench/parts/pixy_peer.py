"""The real Kafka-Pixy beside ours in ``bench.pixy --peer PROGRAM``, and the ZooKeeper that it needs."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from bench.parts.pixy_processes import Server
from dexorder.setup.jars import jar_folder
from dexorder.setup.java import find_java
from dexorder.supervisor.kafka import java_command
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.rig.processes import Worker, free_ports, until

PEER = "kafka-pixy"
_CONFIG = """\
grpc_addr: {address}
tcp_addr: 127.0.0.1:{http}
proxies:
  default:
    kafka: {{seed_peers: ["{bootstrap}"], version: 0.10.2.1}}
    zoo_keeper: {{seed_peers: ["127.0.0.1:{zookeeper}"]}}
    producer: {{flush_frequency: 0s, flush_bytes: 0}}
    consumer: {{subscription_timeout: 1h, fetch_max_bytes: 4194304}}
"""
"""Its defaults, but a record is sent at once, a group stays a member between two turns, and whole batches are read."""


@contextmanager
def kafka_pixy(program: str, bootstrap: str) -> Iterator[Server]:
    """Start a built Kafka-Pixy and wait until it serves."""
    grpc_port, http, zookeeper = free_ports(3)
    address = f"127.0.0.1:{grpc_port}"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(_CONFIG.format(address=address, http=http, zookeeper=zookeeper, bootstrap=bootstrap))
        main, where = "org.apache.zookeeper.server.ZooKeeperServerMain", [str(zookeeper), f"{folder}/zookeeper"]
        with Worker(*java_command(find_java(), jar_folder("kafka"), main, where, heap_mb=128)):
            until(lambda: _listens(zookeeper))
            with Worker(program, "-config", str(config)) as process:
                until(lambda: _listens(grpc_port))
                yield Server(address, process.process.pid, f"127.0.0.1:{http}")


def from_the_start(server: Server, topic: str, group: str, partitions: int) -> None:
    """Set a new group to the start of a topic: Kafka-Pixy has its groups start at the end."""
    offsets = [pixy.PartitionOffset(partition=number, offset=0) for number in range(partitions)]
    with grpc.insecure_channel(server.address) as channel:
        KafkaPixyStub(channel).SetOffsets(pixy.SetOffsetsRq(topic=topic, group=group, offsets=offsets), timeout=60)
    time.sleep(1)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
