"""Calls of providers: each within its time, each result once."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import SendRequest
from dexorder_gateway.events.dispatcher.metrics import SendMetrics
from dexorder_gateway.events.dispatcher.sender import ChannelSender
from dexorder_gateway.events.model import Contacts, EventKey, EventMessage, Later, Result, SendRefused, Sent
from tests.fakes.events.contacts import contacts_with

MESSAGE = EventMessage("aa", "t", "b", Priority.NORMAL, 1)


class Slow:
    """Adapter that is slow, or fails, as the contacts' mail address says."""

    def __init__(self, channel: Channel, seconds: float = 0.02) -> None:
        self.channel = channel
        self.seconds = seconds
        self.under_way = self.begun = 0

    def reachable(self, contacts: Contacts) -> str:
        return ""

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        how = contacts.address(Channel.EMAIL)
        self.begun += 1
        self.under_way += 1
        try:
            if how == "raise":
                raise RuntimeError("https://hooks.test/token")
            if how == "refuse":
                return SendRefused("no such address")
            await asyncio.sleep(3600 if how == "hang" else self.seconds)
            return Sent()
        finally:
            self.under_way -= 1


class Results(dict[int, Result]):
    """Results by number; each may arrive once."""

    def take(self, key: EventKey, number: int, result: Result) -> None:
        assert number not in self and key == EventKey("c", f"e-{number}")
        self[number] = result

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.002)


def calls(count: int, channel: Channel, how: str = "", *, start: int = 0) -> list[SendRequest]:
    return [
        SendRequest(EventKey("c", f"e-{n}"), n, channel, "alice", MESSAGE, contacts_with(email=how))
        for n in range(start, start + count)
    ]


def sender(
    results: Results,
    *adapters: Slow,
    timeout_seconds: float = 5.0,
    registry: CollectorRegistry | None = None,
) -> ChannelSender:
    by_channel = {adapter.channel: adapter for adapter in adapters}
    settings = EventsSettings(send_timeout_seconds=timeout_seconds)
    return ChannelSender(by_channel, settings, results.take, SendMetrics(registry or CollectorRegistry()))


async def test_calls_run_at_the_same_time_and_each_has_one_result() -> None:
    results, adapter, other = Results(), Slow(Channel.EMAIL), Slow(Channel.SLACK)
    async with sender(results, adapter, other) as sending:
        sending.send(calls(30, Channel.EMAIL))
        sending.send(calls(20, Channel.EMAIL, start=30) + calls(1, Channel.SLACK, start=50))
        await asyncio.sleep(0)
        assert (adapter.under_way, other.under_way) == (50, 1)
        await results.until(51)
    assert set(results.values()) == {Sent()}


async def test_a_channel_whose_calls_hang_does_not_slow_another() -> None:
    results = Results()
    async with sender(results, Slow(Channel.EMAIL), Slow(Channel.SLACK)) as sending:
        sending.send(calls(5, Channel.EMAIL, "hang") + calls(5, Channel.SLACK, start=5))
        await results.until(5)
        assert set(results) == {5, 6, 7, 8, 9}


async def test_a_call_is_cancelled_after_its_timeout() -> None:
    results, adapter = Results(), Slow(Channel.EMAIL)
    began = time.monotonic()
    async with sender(results, adapter, timeout_seconds=0.1) as sending:
        sending.send(calls(3, Channel.EMAIL, "hang") + calls(1, Channel.EMAIL, start=3))
        await results.until(4)
    assert results == {0: Later("timeout"), 1: Later("timeout"), 2: Later("timeout"), 3: Sent()}
    assert time.monotonic() - began >= 0.1 and adapter.under_way == 0


async def test_an_error_of_an_adapter_is_reported_without_its_text(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    results = Results()
    async with sender(results, Slow(Channel.EMAIL)) as sending:
        sending.send(calls(1, Channel.EMAIL, "raise") + calls(1, Channel.EMAIL, start=1))
        await results.until(2)
    assert results == {0: Later("internal error"), 1: Sent()}
    logged = caplog.text + "".join(capfd.readouterr())
    assert "RuntimeError" in logged and "hooks.test" not in logged


async def test_the_end_cancels_calls_without_a_result() -> None:
    results, adapter = Results(), Slow(Channel.EMAIL)
    async with sender(results, adapter) as sending:
        sending.send(calls(5, Channel.EMAIL, "hang"))
        await asyncio.sleep(0.01)
        assert adapter.under_way == 5
    assert adapter.under_way == 0 and adapter.begun == 5 and results == {}


async def test_a_channel_that_is_not_configured_is_refused() -> None:
    results = Results()
    async with sender(results) as sending:
        sending.send(calls(1, Channel.TELEGRAM))
    assert results == {0: SendRefused("not configured")}


async def test_calls_are_counted_by_channel_and_outcome_with_their_time() -> None:
    results, registry = Results(), CollectorRegistry()
    adapters = (Slow(Channel.EMAIL, seconds=0.06), Slow(Channel.SLACK))
    began_s = time.monotonic()
    async with sender(results, *adapters, timeout_seconds=0.2, registry=registry) as sending:
        sending.send(calls(2, Channel.EMAIL) + calls(1, Channel.EMAIL, "hang", start=2))
        sending.send(calls(3, Channel.SLACK, "refuse", start=3) + calls(1, Channel.SLACK, "raise", start=6))
        sending.send(calls(1, Channel.TELEGRAM, start=7))
        await results.until(8)
        took_s = time.monotonic() - began_s
        sending.send(calls(1, Channel.EMAIL, "hang", start=8))
        await asyncio.sleep(0.01)

    def counted(what: str, channel: str, outcome: str) -> float | None:
        labels = {"channel": channel, "outcome": outcome}
        return registry.get_sample_value(f"dexorder_gateway_event_send_seconds_{what}", labels)

    assert counted("count", "EMAIL", "sent") == 2
    assert counted("count", "EMAIL", "later") == 1, "one timed out; the cancelled one has no outcome"
    assert counted("count", "SLACK", "refused") == 3
    assert counted("count", "SLACK", "later") == 1
    assert counted("count", "TELEGRAM", "refused") is None, "no provider was called"
    seconds = (counted("sum", "EMAIL", "sent") or 0) + (counted("sum", "EMAIL", "later") or 0)
    assert 0.3 < seconds <= 3 * took_s, "three calls at the same time"
