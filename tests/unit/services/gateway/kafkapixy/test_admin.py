"""Administrative queries with answers that a real broker rarely gives."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigSource  # type: ignore[attr-defined]

from dexorder_common.model.errors import Exhausted, NotAllowed, Unavailable
from dexorder_gateway.kafkapixy import admin as module
from dexorder_gateway.kafkapixy.admin import Admin
from dexorder_gateway.kafkapixy.admin_views import GroupView, PartitionView, TopicView
from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


class FakeClient:
    """AdminClient with answers set by a test."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.configs: dict[str, Any] = {}
        self.groups: list[Any] = []
        self.described: list[tuple[list[str], str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def list_topics(self, timeout: float) -> Any:
        self.gate.wait()
        return SimpleNamespace(topics=self.topics)

    def describe_configs(self, wanted: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        self.described.append(([each.name for each in wanted], threading.current_thread().name))
        return {each: done(self.configs[each.name]) for each in wanted}

    def list_groups(self, *name: str, timeout: float) -> list[Any]:
        return [each for each in self.groups if not name or each.id == name[0]]


def admin(client: FakeClient, failure: str | None = None) -> Admin:
    async def usable() -> None:
        if failure:
            raise Unavailable(failure)

    return Admin(ClusterConfig("c", "nowhere:1"), SimpleNamespace(client=client), usable)  # type: ignore[arg-type]


def listed(error: KafkaError | None = None, leader: int = 1) -> Any:
    partition = SimpleNamespace(leader=leader, replicas=[1, 2], isrs=[2])
    return SimpleNamespace(error=error, partitions={0: partition})


def entry(name: str, value: str | None, source: ConfigSource) -> Any:
    return SimpleNamespace(name=name, value=value, source=source.value)


def group(name: str, state: str = "Stable", error: int | None = None, **assignments: bytes) -> Any:
    members = [
        SimpleNamespace(id=member, client_id="c", client_host="/h", assignment=assignment)
        for member, assignment in assignments.items()
    ]
    failure = None if error is None else KafkaError(error)
    return SimpleNamespace(id=name, state=state, error=failure, protocol_type="consumer", members=members)


async def test_topics_that_are_deleted_created_or_forbidden() -> None:
    client, gone = FakeClient(), KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    client.topics = {
        "fine": listed(),
        "gone": listed(gone),
        "goes": listed(),
        "new": listed(KafkaError(KafkaError.LEADER_NOT_AVAILABLE), leader=-1),
        "theirs": listed(),
    }
    own, default = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DEFAULT_CONFIG
    client.configs = {
        "fine": {"a": entry("a", "1", own), "b": entry("b", None, own), "c": entry("c", "3", default)},
        "goes": KafkaException(gone),
        "new": {},
        "theirs": KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
    }
    partition = PartitionView(0, 1, (1, 2), (2,))
    assert await admin(client).topics() == {
        "fine": TopicView((partition,), {"a": "1", "b": ""}),
        "new": TopicView((PartitionView(0, -1, (1, 2), (2,)),), {}),
        "theirs": TopicView((partition,), None),
    }


async def test_configurations_are_queried_only_if_asked_for_and_outside_the_loop() -> None:
    client = FakeClient()
    client.topics = {name: listed() for name in ("a", "b")}
    client.configs = {name: {} for name in client.topics}
    partition = PartitionView(0, 1, (1, 2), (2,))
    assert await admin(client).topics(with_partitions=False, with_config=False) == {n: TopicView(()) for n in "ab"}
    assert await admin(client).topics(with_config=False) == {n: TopicView((partition,)) for n in "ab"}
    assert client.described == []
    assert await admin(client).topics(with_partitions=False) == {n: TopicView((), {}) for n in "ab"}
    assert client.described == [(["a", "b"], "kafka-admin")]  # one request for all


async def test_offsets_of_all_partitions_are_one_request() -> None:
    client, asked = FakeClient(), []

    def list_offsets(query: dict[Any, Any], **given: Any) -> dict[Any, Future[Any]]:
        asked.append([(place.partition, threading.current_thread().name) for place in query])
        return {place: done(SimpleNamespace(offset=len(asked) * 10 + place.partition)) for place in query}

    client.list_offsets = list_offsets  # type: ignore[attr-defined]
    assert await admin(client)._logs("t", [0, 1, 2]) == {0: (10, 20), 1: (11, 21), 2: (12, 22)}
    assert asked == [[(partition, "kafka-admin") for partition in range(3)]] * 2  # of the begins, and of the ends


async def test_cluster_without_topics() -> None:
    assert await admin(FakeClient()).topics() == {}


async def test_group_whose_coordinator_moves_is_not_settled() -> None:
    client = FakeClient()
    client.groups = [group("g", error=KafkaError.NOT_COORDINATOR)]
    assert await admin(client).group("g") == GroupView("g", settled=False)
    assert await admin(client).group("other") == GroupView("other", settled=True)


async def test_group_that_may_not_be_described_is_an_error() -> None:
    client = FakeClient()
    client.groups = [group("g", error=KafkaError.GROUP_AUTHORIZATION_FAILED)]
    with pytest.raises(NotAllowed):
        async with admin(client).call():
            await admin(client).group("g")


async def test_assignment_of_another_protocol_has_no_partitions() -> None:
    client = FakeClient()
    client.groups = [group("g", m=b"\x07what is this")]
    (member,) = (await admin(client).group("g")).members
    assert member.partitions == {}


async def test_group_that_keeps_rebalancing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.02)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.005)
    client = FakeClient()
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\3\0\0\0\0"
    client.groups = [group("changing", "PreparingRebalance", m=b""), group("g", m=assignment)]
    with pytest.raises(Unavailable, match="'changing' is rebalancing"):
        await admin(client).consumers("t", "changing")
    assert await admin(client).consumers("t") == {"g": {"c": [3]}}


async def test_number_of_blocked_queries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_THREADS", 2)
    client = FakeClient()
    client.gate.clear()
    asked = admin(client)
    waiting = [asyncio.create_task(asked.topics()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Exhausted, match="2 administrative queries"):
        await asked.topics()
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    with pytest.raises(Exhausted):  # its thread still runs
        await asked.topics()
    client.gate.set()
    assert await waiting[1] == {}
    while True:
        try:
            assert await asked.topics() == {}
            break
        except Exhausted:
            await asyncio.sleep(0)


async def test_call_that_takes_too_long_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_TIMEOUT_SECONDS", 0.01)
    client = FakeClient()
    client.gate.clear()
    asked = admin(client)
    with pytest.raises(Unavailable, match="did not answer"):
        async with asked.call():
            await asked.topics()
    client.gate.set()


async def test_unavailable_cluster_is_not_queried() -> None:
    with pytest.raises(Unavailable, match="no such host"):
        async with admin(FakeClient(), "no such host").call():
            raise AssertionError
