"""Three brokers, a topic with three replicas, and the death of a leader of which one replica is behind.

A replica that is behind becomes the leader: what only the dead one had acknowledged is lost. So nothing may be
acknowledged before all replicas in sync have it, for callers of the gateway and for an ingestor's pages.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client import CollectorRegistry

from dexorder_common.model import datasets
from dexorder_common.model.errors import Unavailable
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.gateway_thread import GatewayThread, records
from tests.rig.processes import until
from tests.two_brokers import KafkaCluster

pytestmark = [pytest.mark.nightly, pytest.mark.kafka, pytest.mark.timeout(300)]
LEADER, BEHIND, CONTROLLER = 2, 3, 1
RECORDS = 200
FROZEN_SECONDS = 1.0
"""Shorter than the session of a broker: the one that is behind stays in sync by name, and is the next leader."""


@pytest.fixture(scope="module")
def cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    running = KafkaCluster(tmp_path_factory.mktemp("brokers"), 3)
    yield running
    running.stop()


@pytest.fixture
def topics(cluster: KafkaCluster) -> Iterator[tuple[str, str]]:
    """A topic of callers and that of pages, led by the broker that dies."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    names = "of-callers", datasets.CANDLES.topic
    replicas, config = [[LEADER, BEHIND, CONTROLLER]], {"min.insync.replicas": "2"}
    for made in admin.create_topics(
        [NewTopic(n, 1, replica_assignment=replicas, config=config) for n in names]
    ).values():
        made.result(60)

    def in_sync() -> bool:
        found = [admin.list_topics(timeout=10).topics[name].partitions for name in names]
        return all(0 in each and len(each[0].isrs) == 3 and each[0].leader == LEADER for each in found)

    until(in_sync)
    yield names


async def test_no_acknowledged_record_is_lost_with_the_leader_that_alone_has_it(
    cluster: KafkaCluster, topics: tuple[str, str]
) -> None:
    gateway = GatewayThread(kafka=cluster.bootstrap, drain_seconds=0.0, produce_timeout_seconds=60.0)
    acknowledged: dict[str, set[bytes]] = {topic: set() for topic in topics}
    settings = IngestorSettings(listen="127.0.0.1:0", rpc_timeout_seconds=60.0)
    try:
        gateway.wait_ready()
        async with grpc.aio.insecure_channel(gateway.address) as channel:
            stub = rpc.KafkaPixyStub(channel)
            publisher = IngestorPublisher(channel, channel, settings, IngestorMetrics(CollectorRegistry()))

            async def record(number: int) -> None:
                value = b"%d" % number
                with suppress(grpc.aio.AioRpcError):
                    await stub.Produce(pb.ProdRq(topic=topics[0], key_value=b"k", message=value))
                    acknowledged[topics[0]].add(value)

            async def page(number: int) -> None:
                value = b"%d" % number
                with suppress(Unavailable):
                    await publisher.produce_record(topics[1], "dispatch", {"page": str(number)}, value)
                    acknowledged[topics[1]].add(value)

            await asyncio.gather(record(-1), page(-1))  # both replicas have these
            behind = cluster.running[BEHIND].process
            behind.send_signal(signal.SIGSTOP)
            try:
                calls = [asyncio.create_task(each(n)) for n in range(RECORDS) for each in (record, page)]
                await asyncio.sleep(FROZEN_SECONDS)
                await asyncio.to_thread(cluster.kill, LEADER)
            finally:
                behind.send_signal(signal.SIGCONT)
            await asyncio.gather(*calls)
    finally:
        await asyncio.to_thread(gateway.stop)
    for topic in topics:
        written = [each.value() for each in await asyncio.to_thread(records, cluster.bootstrap, topic)]
        assert acknowledged[topic] == {b"%d" % number for number in range(-1, RECORDS)}, "the new leader takes all"
        assert acknowledged[topic] <= set(written)
        assert len(written) == len(set(written)), topic
