"""Subscriptions with identity on: whose they are, and how many a client may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from tests.unit.services.relay.realtime.worker import subscription
from tests.unit.services.relay.test_access_rpc import callers_file, code_of, guarded

CODE = grpc.StatusCode


def start(stub: Any, name: str, **fields: Any) -> Any:
    return stub.realtime.StartRealtime(pb.StartRealtimeRequest(subscription=subscription(name, 60, **fields)))


async def ids(stub: Any, **fields: Any) -> list[tuple[str, str]]:
    answer = await stub.realtime.ListRealtime(pb.ListRealtimeRequest(**fields))
    return [(each.subscription.subscription_id, each.subscription.client_id) for each in answer.subscriptions]


async def test_subscriptions_belong_to_their_client_and_the_job_to_all(tmp_path: Path) -> None:
    async with guarded(tmp_path) as suite:
        desk, other, boss = [await suite.stub(name) for name in ("desk", "other", "boss")]
        assert not (await start(desk, "d")).duplicate and (await start(desk, "d", client_id="desk")).duplicate
        await start(other, "o")
        code, text = await code_of(start(other, "x", client_id="desk"))
        assert code is CODE.INVALID_ARGUMENT and "client_id 'desk' is not the caller's, 'other'" in text
        code, text = await code_of(start(other, "d"))
        assert code is CODE.INVALID_ARGUMENT and "was used for another subscription" in text

        assert await ids(desk) == [("d", "desk")] and await ids(other) == [("o", "other")]
        assert await ids(boss) == [("d", "desk"), ("o", "other")] and await ids(boss, client_id="desk") == [
            ("d", "desk")
        ]
        code, _ = await code_of(desk.realtime.ListRealtime(pb.ListRealtimeRequest(client_id="other")))
        assert code is CODE.NOT_FOUND

        for name in ("o", "never"):
            code, text = await code_of(desk.realtime.StopRealtime(pb.StopRealtimeRequest(subscription_id=name)))
            assert (code, text) == (CODE.NOT_FOUND, f"subscription_id '{name}' is not known")
        await boss.realtime.StopRealtime(pb.StopRealtimeRequest(subscription_id="o"))
        code, text = await code_of(desk.realtime.StopRealtime(pb.StopRealtimeRequest(subscription_id="o")))
        assert (code, text) == (CODE.NOT_FOUND, "subscription_id 'o' is not known")
        assert await ids(boss) == [("d", "desk")]


async def test_subscriptions_of_a_client_are_limited(tmp_path: Path) -> None:
    tokens = callers_file(tmp_path / "callers.yaml", desk={"subscriptions": 2})
    async with guarded(tmp_path, tokens=tokens) as suite:
        desk, other = await suite.stub("desk"), await suite.stub("other")
        for name in ("a", "b"):
            await start(desk, name)
        code, text = await code_of(start(desk, "c"))
        assert code is CODE.RESOURCE_EXHAUSTED
        assert text == "subscriptions would be 3, 2 are allowed for client_id 'desk'; stop another one first"
        assert (await start(desk, "a")).duplicate  # a repeat needs no room
        await start(other, "o")
        await desk.realtime.StopRealtime(pb.StopRealtimeRequest(subscription_id="a"))
        assert not (await start(desk, "c")).duplicate
