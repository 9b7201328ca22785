"""Publishing over a real gRPC server into a dispatcher in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_gateway.events import publisher_service
from dexorder_gateway.events.model import HELD
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as events_pb
from tests.fakes.events.sessions_gateway import Served, served, until
from tests.unit.services.common.rpc.test_identity import write_callers
from tests.unit.services.gateway.events.test_full_disk import SETTINGS, events_settings

PATIENCE_S = 30.0
D, Q, E = events_pb.DELIVERED, events_pb.QUEUED, events_pb.ACK_ERROR


def event(event_id: str, user_id: str = "alice") -> events_pb.UserEvent:
    delivery = events_pb.DeliverySpec(priority=events_pb.CRITICAL)
    return events_pb.UserEvent(user_id=user_id, event_id=event_id, payload=b"{}", delivery=delivery)


def stub_of(channel: grpc.aio.Channel) -> Any:
    return rpc.EventPublisherServiceStub(channel)


async def many(call: Any, *event_ids: str) -> None:
    for event_id in event_ids:
        await call.write(pb.PublishManyRequest(event=event(event_id)))


async def acks(call: Any, count: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            answer = await call.read()
            assert answer is not grpc.aio.EOF, found
            found.append((answer.ack.event_id, answer.ack.status))
    return found


async def received(gateway: Served, sequence: int) -> None:
    await gateway.dispatcher.acked("alice", gateway.dispatcher.epoch, sequence, seen=False)


async def test_one_event_is_answered_with_its_state_now(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, open_channel(gateway.grpc, ChannelSettings()) as channel:
        answer = await stub_of(channel).Publish(pb.PublishRequest(event=event("e1")), timeout=PATIENCE_S)
        assert answer.ack == events_pb.EventAck(event_id="e1", status=Q)
        await received(gateway, 1)  # the end of it has nobody to hear it
        answer = await stub_of(channel).Publish(pb.PublishRequest(event=event("")), timeout=PATIENCE_S)
        assert answer.ack.status == E
        with pytest.raises(grpc.aio.AioRpcError, match="event is missing") as refused:
            await stub_of(channel).Publish(pb.PublishRequest(), timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_lasts_until_all_its_events_are_final(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, open_channel(gateway.grpc, ChannelSettings()) as channel:
        call = stub_of(channel).PublishMany()
        await many(call, "e1", "e2", "")
        await call.done_writing()
        assert sorted(await acks(call, 3)) == [("", E), ("e1", Q), ("e2", Q)]
        await received(gateway, 2)
        assert await acks(call, 1) == [("e2", D)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(call.code()), 0.05)
        await received(gateway, 1)
        assert await acks(call, 1) == [("e1", D)]
        assert await asyncio.wait_for(call.code(), PATIENCE_S) is grpc.StatusCode.OK


async def test_a_stream_is_read_no_faster_than_the_disk_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_service, "MAX_UNANSWERED", 8)
    async with served(tmp_path) as gateway, open_channel(gateway.grpc, ChannelSettings()) as channel:
        gateway.dispatcher.released.clear()
        names = [f"e{number}" for number in range(300)]

        async def requests() -> AsyncIterator[pb.PublishManyRequest]:
            for name in names:
                yield pb.PublishManyRequest(event=event(name))

        call = stub_of(channel).PublishMany(requests())
        await asyncio.sleep(0.2)
        assert gateway.dispatcher.unanswered == 8
        gateway.dispatcher.released.set()
        assert [event_id for event_id, _ in await acks(call, 300)] == names
        assert gateway.dispatcher.most_unanswered == 8
        call.cancel()


async def test_a_stream_is_read_no_faster_than_its_caller_reads_acks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_service, "MAX_UNREAD", 10)
    async with served(tmp_path) as gateway, open_channel(gateway.grpc, ChannelSettings()) as channel:
        name = "e" * 60_000

        async def requests() -> AsyncIterator[pb.PublishManyRequest]:
            for number in range(400):
                yield pb.PublishManyRequest(event=event(f"{number}{name}"))

        call = stub_of(channel).PublishMany(requests())
        await until(lambda: gateway.dispatcher.users)
        taken = gateway.dispatcher.users["alice"]
        last = 0
        while last < len(taken):  # how many fit between us and the caller is up to gRPC
            last = len(taken)
            await asyncio.sleep(0.5)
        assert last < 300
        assert len(await acks(call, 400)) == 400
        call.cancel()


async def test_callers_are_the_containers_of_the_file(tmp_path: Path) -> None:
    callers = write_callers(
        tmp_path / "callers.yaml",
        {"client_id": "desk", "token": "desk-token"},
        {"client_id": "stranger", "token": "stranger-token"},
    )
    containers = tmp_path / "containers.yaml"
    containers.write_text(
        yaml.safe_dump({"containers": [{"container": "bot", "client_id": "desk", "users": ["alice"]}]})
    )
    server = {"identity": "token", "tokens": callers}
    async with served(tmp_path, server=server, containers=containers) as gateway:
        for token, user_id, expected in (
            ("desk-token", "alice", Q),
            ("desk-token", "bob", E),
            ("stranger-token", "alice", "PERMISSION_DENIED"),
            ("x", "alice", "UNAUTHENTICATED"),
            (gateway.token("alice"), "alice", "UNAUTHENTICATED"),
        ):
            async with open_channel(gateway.grpc, ChannelSettings(token=token)) as channel:  # type: ignore[arg-type]
                got: list[Any] = []
                for one in (True, False):
                    try:
                        if one:
                            request = pb.PublishRequest(event=event("e", user_id))
                            answer: Any = await stub_of(channel).Publish(request, timeout=PATIENCE_S)
                        else:
                            call = stub_of(channel).PublishMany()
                            if (
                                expected != "UNAUTHENTICATED"
                            ):  # a write to a call that has ended is INTERNAL at the client
                                await call.write(pb.PublishManyRequest(event=event("f", user_id)))
                            answer = await call.read()
                            call.cancel()
                        got.append(answer.ack.status)
                    except grpc.aio.AioRpcError as error:
                        got.append(error.code().name)
                assert got == [expected] * 2, token
        assert {kept.record.key.container for kept in gateway.dispatcher.users["alice"]} == {"bot"}


async def test_an_open_stream_has_the_rights_that_the_file_gives_now(tmp_path: Path) -> None:
    def write(*users: str) -> None:
        entries = [{"container": "bot", "client_id": "desk", "users": list(users)}] if users else []
        fresh = containers.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"containers": entries}))
        fresh.replace(containers)

    containers = tmp_path / "containers.yaml"
    write("alice")
    callers = write_callers(tmp_path / "callers.yaml", {"client_id": "desk", "token": "desk-token"})
    async with (
        served(tmp_path, server={"identity": "token", "tokens": callers}, containers=containers) as gateway,
        open_channel(gateway.grpc, ChannelSettings(token="desk-token")) as channel,  # type: ignore[arg-type]
    ):
        call = stub_of(channel).PublishMany()
        await many(call, "e1")
        assert await acks(call, 1) == [("e1", Q)]
        write("bob")
        await many(call, "e2")
        assert await acks(call, 1) == [("e2", E)]
        write()
        await many(call, "e3")
        assert await asyncio.wait_for(call.code(), PATIENCE_S) is grpc.StatusCode.PERMISSION_DENIED


async def test_calls_with_critical_events_above_the_limit_are_told_when_to_come_again(tmp_path: Path) -> None:
    """What was accepted before is answered, and a copy of it is no new event."""
    settings = events_settings(tmp_path).model_copy(update={"hard_critical_events": 2})
    async with (
        gateway(SETTINGS, settings) as running,
        open_channel(running.address, ChannelSettings()) as channel,
    ):
        stream = stub_of(channel).PublishMany()
        await many(stream, "e1", "e2", "e3")
        assert await acks(stream, 2) == [("e1", Q), ("e2", Q)]
        for call in (stream, stub_of(channel).Publish(pb.PublishRequest(event=event("e4")))):
            assert await asyncio.wait_for(call.code(), PATIENCE_S) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await call.details() == HELD
            assert dict(await call.trailing_metadata())["retry-after-ms"] == "5000"
        answer = await stub_of(channel).Publish(pb.PublishRequest(event=event("e1")), timeout=PATIENCE_S)
        assert answer.ack.status == Q


async def test_a_stop_answers_accepted_events_and_refuses_more(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, open_channel(gateway.grpc, ChannelSettings()) as channel:
        gateway.dispatcher.released.clear()
        call = stub_of(channel).PublishMany()
        await many(call, "e1")
        await until(lambda: gateway.dispatcher.unanswered)
        gateway.publisher.stop_taking()
        await asyncio.sleep(0.05)
        gateway.dispatcher.released.set()
        assert await acks(call, 1) == [("e1", Q)]
        assert await asyncio.wait_for(call.code(), PATIENCE_S) is grpc.StatusCode.UNAVAILABLE
        for refused in (stub_of(channel).Publish(pb.PublishRequest(event=event("e2"))), stub_of(channel).PublishMany()):
            assert await asyncio.wait_for(refused.code(), PATIENCE_S) is grpc.StatusCode.UNAVAILABLE


async def test_a_dispatcher_that_fails_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as gateway, open_channel(gateway.grpc, ChannelSettings()) as channel:

        def publish(*_: object) -> None:
            raise Unavailable("the gateway takes no events now")

        call = stub_of(channel).PublishMany()
        await many(call, "e1")
        assert await acks(call, 1) == [("e1", Q)]
        monkeypatch.setattr(gateway.dispatcher, "publish", publish)
        await many(call, "e2")
        assert await asyncio.wait_for(call.code(), PATIENCE_S) is grpc.StatusCode.UNAVAILABLE


async def test_a_duplicate_has_the_same_bytes_whatever_its_encoding() -> None:
    one = event("e1")
    reordered = b"".join(
        part.SerializeToString() for part in (events_pb.UserEvent(event_id="e1"), events_pb.UserEvent(user_id="alice"))
    )
    rest = event("e1")
    rest.ClearField("user_id")
    rest.ClearField("event_id")
    again = events_pb.UserEvent.FromString(reordered + rest.SerializeToString())
    assert publisher_service.body_of(again) == publisher_service.body_of(one)
