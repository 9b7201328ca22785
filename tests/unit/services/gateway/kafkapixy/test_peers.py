"""Acks of partitions that other gateways have: which ones are asked, for how long, and how many acks may wait."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from dexorder_common.kafka.member_commits import NotAssigned
from dexorder_common.model.errors import Code, Exhausted, Unavailable
from dexorder_common.rpc.error_details import STATUS_DETAILS, encode_details
from dexorder_gateway.kafkapixy import peers
from dexorder_gateway.kafkapixy.peers import Peers

PLACE = ("", "g", "t", 2)


def refusal(reason: str, code: grpc.StatusCode = grpc.StatusCode.INTERNAL) -> AioRpcError:
    details = encode_details(Code[code.name], "why", reason=reason, method="m", retry_ms=None, names=())
    return AioRpcError(code, Metadata(), Metadata((STATUS_DETAILS, details)), "why")


class Others:
    """Gateways by address: None takes an ack, an error refuses it."""

    def __init__(self, **answers: AioRpcError | None) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.peers = Peers(["all:1"])
        self.peers._resolved_s = float("inf")
        self.peers._peers = {name: peers._Peer(name, None, name) for name in answers}  # type: ignore[arg-type]

    async def forward(self, stub: Any, timeout: float) -> None:
        self.asked.append(stub)
        if (error := self.answers[stub]) is not None:
            raise error

    async def take(self, *, wait: bool = False) -> None:
        await self.peers.take(PLACE, not_here, self.forward, wait=wait)


def not_here() -> None:
    raise NotAssigned("partition 2 is not assigned to this gateway")


async def test_the_gateway_that_took_the_last_ack_is_asked_first() -> None:
    others = Others(a=refusal("NOT_ASSIGNED"), b=refusal("NOT_ASSIGNED"), c=None)
    await others.take()
    await others.take()
    assert others.asked == ["a", "b", "c", "c"]
    others.answers |= {"a": None, "c": refusal("NOT_ASSIGNED")}
    others.asked.clear()
    await others.take()
    assert others.asked == ["c", "a"]


async def test_the_caller_is_told_whether_the_same_ack_may_be_taken_later() -> None:
    with pytest.raises(NotAssigned, match="partition 2 is not assigned to this gateway, nor to another one"):
        await Others(a=refusal("NOT_ASSIGNED")).take()
    gone = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "refused")
    with pytest.raises(Unavailable, match="gateway b does not take it: UNAVAILABLE: refused; try again"):
        await Others(a=refusal("NOT_ASSIGNED"), b=gone).take()
    denied = refusal("NOT_ALLOWED", grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(Unavailable, match="gateway a does not take it: PERMISSION_DENIED"):
        await Others(a=denied).take()


async def test_an_ack_waits_for_a_reader_of_its_partition() -> None:
    others = Others(a=refusal("NOT_ASSIGNED"))
    waiting = asyncio.create_task(others.take(wait=True))
    while len(others.asked) < 2:
        await asyncio.sleep(0)
        if waiting.done():
            break
        await asyncio.sleep(0.01)
    others.answers["a"] = None
    await asyncio.wait_for(waiting, 10)


async def test_acks_that_nobody_takes_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_WAITING", 3)
    monkeypatch.setattr(peers, "WAIT_SECONDS", 0.3)
    others = Others(a=refusal("NOT_ASSIGNED"))
    waiting = [asyncio.create_task(others.take(wait=True)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Exhausted, match="3 acks wait for other gateways already"):
        await others.take(wait=True)
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert all(isinstance(each, NotAssigned) for each in ended)
    assert len(others.asked) <= 3 * 4, "the pauses grow"
    others.answers["a"] = None
    await others.take()
