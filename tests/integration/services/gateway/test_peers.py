"""Acks and offsets at any gateway: calls that a proxy sends to gateways in turn, while gateways come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.fakes.mesh_proxy import RepeatingProxy
from tests.gateway_thread import GatewayThread, MakeTopic, StartGateway, Write, numbers
from tests.rig.processes import free_ports

pytestmark = pytest.mark.kafka
PARTITIONS = 4
RECORDS = 40
FAST = {"long_polling_timeout_ms": 500, "offsets_commit_interval_ms": 50}


def pair(start: StartGateway, **settings: Any) -> list[GatewayThread]:
    """Start two gateways that know each other."""
    ports = free_ports(2)
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    given = {**FAST, "peers": peers, **settings}
    return [start(listen=f"127.0.0.1:{port}", **given) for port in ports]


@asynccontextmanager
async def balanced(*gateways: GatewayThread) -> AsyncIterator[Any]:
    """Give a stub whose calls go to the gateways in turn."""
    proxy = RepeatingProxy(*(each.address for each in gateways))
    async with proxy.listening() as address, grpc.aio.insecure_channel(address) as channel:
        yield rpc.KafkaPixyStub(channel)


def fill(write: Write, topic: str) -> None:
    for partition in range(PARTITIONS):
        write(topic, *numbers(RECORDS // PARTITIONS), partition=partition)


def commits(kafka: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": topic})
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return [each.offset for each in consumer.committed(places, timeout=30)]
    finally:
        consumer.close()


async def committed(kafka: str, topic: str) -> None:
    """Wait until every record is acked in Kafka's commits."""
    async with asyncio.timeout(30):
        while (found := await asyncio.to_thread(commits, kafka, topic)) != [RECORDS // PARTITIONS] * PARTITIONS:
            await asyncio.sleep(0.1)
            assert max(found) <= RECORDS // PARTITIONS


async def consume(stub: Any, topic: str, **fields: Any) -> pb.ConsRs:
    async with asyncio.timeout(60):
        while True:
            try:
                answer: pb.ConsRs = await stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=topic, **fields))
                return answer
            except grpc.aio.AioRpcError as error:
                # An ack that it carried has been taken, and may be sent again.
                if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                    raise


async def joined(topic: str, *gateways: GatewayThread) -> None:
    """Wait until each gateway reads partitions of the group, whose topic is empty."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(each.address)) for each in gateways]
        stubs: list[Any] = [rpc.KafkaPixyStub(channel) for channel in channels]
        readers: dict[str, Any] = {}
        while len(readers) < len(gateways):
            request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
            await asyncio.gather(*(stub.ConsumeNAck(request) for stub in stubs), return_exceptions=True)
            with suppress(grpc.aio.AioRpcError):  # NOT_FOUND: nobody has joined
                answer = await stubs[0].ListConsumers(pb.ListConsumersRq(topic=topic, group=topic))
                readers = answer.groups[topic].consumers


async def test_every_ack_counts_though_calls_go_to_gateways_in_turn(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, gateways = kafka_topic(PARTITIONS), pair(start_gateway)
    acked = Counter[tuple[int, int]]()
    await joined(topic, *gateways)
    fill(write, topic)
    async with balanced(*gateways) as stub:
        for _ in range(RECORDS):
            found = await consume(stub, topic, no_ack=True)
            await stub.Ack(pb.AckRq(topic=topic, group=topic, partition=found.partition, offset=found.offset))
            acked[found.partition, found.offset] += 1
    assert len(acked) == RECORDS == acked.total()
    await committed(kafka, topic)


async def test_every_ack_that_the_next_call_carries_counts(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, gateways = kafka_topic(PARTITIONS), pair(start_gateway)
    await joined(topic, *gateways)
    fill(write, topic)
    seen: list[tuple[int, int]] = []
    async with balanced(*gateways) as stub:
        found = await consume(stub, topic, no_ack=True)
        while True:
            seen.append((found.partition, found.offset))
            if len(set(seen)) == RECORDS:
                break
            found = await consume(stub, topic, ack_partition=found.partition, ack_offset=found.offset)
        await stub.Ack(pb.AckRq(topic=topic, group=topic, partition=found.partition, offset=found.offset))
    await committed(kafka, topic)


async def test_acks_count_while_a_gateway_leaves_and_another_one_comes(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(PARTITIONS)
    ports = free_ports(3)
    given: dict[str, Any] = {**FAST, "peers": ",".join(f"127.0.0.1:{port}" for port in ports), "drain_seconds": 5.0}
    gateways = [start_gateway(listen=f"127.0.0.1:{port}", **given) for port in ports[:2]]
    await joined(topic, *gateways)
    fill(write, topic)
    async with balanced(*gateways) as stub:
        held = [await consume(stub, topic, no_ack=True) for _ in range(RECORDS // 2)]
    first, second = gateways
    first.begin_stop()  # its records may still be acked; the calls go to the others
    third = start_gateway(listen=f"127.0.0.1:{ports[2]}", **given)
    async with balanced(second, third) as stub:
        for each in held:
            await acked(stub, topic, each)
        done = {(each.partition, each.offset) for each in held}
        while len(done) < RECORDS:
            found = await consume(stub, topic, no_ack=True)
            await acked(stub, topic, found)
            done.add((found.partition, found.offset))
    await committed(kafka, topic)


async def acked(stub: Any, topic: str, record: pb.ConsRs) -> None:
    """Ack a record, again while the gateways say that it can't be taken now."""
    async with asyncio.timeout(60):
        while True:
            try:
                await stub.Ack(pb.AckRq(topic=topic, group=topic, partition=record.partition, offset=record.offset))
                return
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error


async def test_offsets_are_set_at_any_gateway(
    start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, gateways = kafka_topic(PARTITIONS), pair(start_gateway)
    await joined(topic, *gateways)
    fill(write, topic)
    async with balanced(*gateways) as stub:
        for _ in range(RECORDS):
            found = await consume(stub, topic, no_ack=True)
            await acked(stub, topic, found)
        await committed(kafka, topic)
        offsets = [pb.PartitionOffset(partition=partition, offset=partition) for partition in range(PARTITIONS)]
        await stub.SetOffsets(pb.SetOffsetsRq(topic=topic, group=topic, offsets=offsets))
        assert await asyncio.to_thread(commits, kafka, topic) == [0, 1, 2, 3]
        again = [await consume(stub, topic, no_ack=True) for _ in range(RECORDS - 6)]
    assert sorted((each.partition, each.offset) for each in again) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(partition, 10)
    ]


@contextmanager
def told(code: grpc.StatusCode, text: str) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        yield
    assert caught.value.code() is code


async def test_the_caller_is_told_of_an_ack_that_nobody_takes(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dexorder_gateway.kafkapixy.peers.WAIT_SECONDS", 0.5)
    topic = kafka_topic(PARTITIONS)
    fill(write, topic)
    alone = start_gateway(**FAST)
    lost = start_gateway(**FAST, peers=f"127.0.0.1:{free_ports(1)[0]}")
    async with balanced(lost) as stub:
        ack = pb.AckRq(topic=topic, group=topic, partition=1, offset=3)
        with told(grpc.StatusCode.UNAVAILABLE, "does not read topic .* here, and gateway .* try again"):
            await stub.Ack(ack)
        carried = pb.ConsNAckRq(topic=topic, group=topic, ack_partition=9, ack_offset=3)
        await consume(stub, topic, no_ack=True)
        with told(grpc.StatusCode.UNAVAILABLE, "partition 9 is not assigned to this gateway, and gateway"):
            await stub.ConsumeNAck(carried)
    async with balanced(alone) as stub:
        with told(grpc.StatusCode.INTERNAL, "does not read topic .* here"):
            await stub.Ack(pb.AckRq(topic=topic, group="another", partition=1, offset=3))


async def test_an_ack_that_waits_for_a_peer_when_the_gateway_stops_is_refused_and_may_be_sent_again(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(PARTITIONS)
    fill(write, topic)
    gateway = start_gateway(**FAST, peers=f"127.0.0.1:{free_ports(1)[0]}", drain_seconds=1.0)
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub: Any = rpc.KafkaPixyStub(channel)
        ack = asyncio.ensure_future(stub.Ack(pb.AckRq(topic=topic, group=topic, partition=1, offset=3)))
        await asyncio.sleep(0.3)
        assert not ack.done()
        gateway.begin_stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ack
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), caught.value
