"""So many calls at once, each within its time, each result once."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from services.common.model.user_events import Channel, Priority
from services.gateway.events.config import EventsSettings
from services.gateway.events.delivery.changes import SendRequest
from services.gateway.events.dispatcher.sender import Sender
from services.gateway.events.dispatcher.sending_metrics import SendingMetrics
from services.gateway.events.model import Contacts, EventKey, Later, Message, Refused, Result, Sent

MESSAGE = Message("aa", "t", "b", Priority.NORMAL, 1)


class Slow:
    """A way that takes its time, or fails, as the contacts' mail address says."""

    def __init__(self, channel: Channel, seconds: float = 0.02) -> None:
        self.channel = channel
        self.seconds = seconds
        self.under_way = self.most = self.begun = 0

    def reachable(self, contacts: Contacts) -> str:
        return ""

    async def send(self, message: Message, contacts: Contacts) -> Result:
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if contacts.email == "raise":
                raise RuntimeError("https://hooks.test/token")
            if contacts.email == "refuse":
                return Refused("no such address")
            await asyncio.sleep(3600 if contacts.email == "hang" else self.seconds)
            return Sent()
        finally:
            self.under_way -= 1


class Results(dict[int, Result]):
    """By number; each may come once."""

    def take(self, key: EventKey, number: int, result: Result) -> None:
        assert number not in self and key == EventKey("c", f"e-{number}")
        self[number] = result

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.002)


def calls(count: int, channel: Channel, how: str = "", *, start: int = 0) -> list[SendRequest]:
    return [
        SendRequest(EventKey("c", f"e-{n}"), n, channel, "alice", MESSAGE, Contacts(email=how))
        for n in range(start, start + count)
    ]


def sender(
    results: Results,
    *ways: Slow,
    at_once: int = 4,
    timeout_seconds: float = 5.0,
    registry: CollectorRegistry | None = None,
) -> Sender:
    by_channel = {way.channel: way for way in ways}
    settings = EventsSettings(max_concurrent_sends=at_once, send_timeout_seconds=timeout_seconds)
    return Sender(by_channel, settings, results.take, SendingMetrics(registry or CollectorRegistry()))


async def test_no_more_calls_than_may_be_under_way_and_none_forgotten() -> None:
    results, way, other = Results(), Slow(Channel.EMAIL), Slow(Channel.SLACK)
    async with sender(results, way, other) as sending:
        sending.send(calls(30, Channel.EMAIL))
        assert sending.waiting(Channel.EMAIL) == 26
        sending.send(calls(20, Channel.EMAIL, start=30) + calls(1, Channel.SLACK, start=50))
        await results.until(51)
    assert way.most == 4 and other.most == 1
    assert set(results.values()) == {Sent()}


async def test_a_full_channel_does_not_slow_another() -> None:
    results = Results()
    async with sender(results, Slow(Channel.EMAIL), Slow(Channel.SLACK), at_once=2) as sending:
        sending.send(calls(5, Channel.EMAIL, "hang") + calls(5, Channel.SLACK, start=5))
        await results.until(5)
        assert set(results) == {5, 6, 7, 8, 9}


async def test_a_call_has_its_time_and_those_in_line_theirs() -> None:
    results = Results()
    began = time.monotonic()
    async with sender(results, Slow(Channel.EMAIL), at_once=1, timeout_seconds=0.1) as sending:
        sending.send(calls(3, Channel.EMAIL, "hang") + calls(1, Channel.EMAIL, start=3))
        await results.until(4)
    assert results == {0: Later("timeout"), 1: Later("timeout"), 2: Later("timeout"), 3: Sent()}
    assert time.monotonic() - began >= 0.3


async def test_what_fails_in_a_way_is_told_without_its_words(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    results = Results()
    async with sender(results, Slow(Channel.EMAIL)) as sending:
        sending.send(calls(1, Channel.EMAIL, "raise") + calls(1, Channel.EMAIL, start=1))
        await results.until(2)
    assert results == {0: Later("internal error"), 1: Sent()}
    told = caplog.text + "".join(capfd.readouterr())
    assert "RuntimeError" in told and "hooks.test" not in told


async def test_the_end_cuts_off_what_is_under_way_and_says_nothing_of_it() -> None:
    results, way = Results(), Slow(Channel.EMAIL)
    async with sender(results, way, at_once=2) as sending:
        sending.send(calls(5, Channel.EMAIL, "hang"))
        await asyncio.sleep(0.01)
        assert way.under_way == 2
    assert way.under_way == 0 and way.begun == 2 and results == {}


async def test_a_channel_that_is_not_on_is_refused() -> None:
    results = Results()
    async with sender(results) as sending:
        sending.send(calls(1, Channel.TELEGRAM))
    assert results == {0: Refused("not configured")}


async def test_calls_are_counted_by_channel_and_outcome_with_their_time() -> None:
    results, registry = Results(), CollectorRegistry()
    ways = (Slow(Channel.EMAIL, seconds=0.06), Slow(Channel.SLACK))
    began_s = time.monotonic()
    async with sender(results, *ways, at_once=1, timeout_seconds=0.2, registry=registry) as sending:
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
    assert counted("count", "EMAIL", "later") == 1, "one ran out of time; the one that was cut off came to nothing"
    assert counted("count", "SLACK", "refused") == 3
    assert counted("count", "SLACK", "later") == 1
    assert counted("count", "TELEGRAM", "refused") is None, "nobody was called"
    seconds = (counted("sum", "EMAIL", "sent") or 0) + (counted("sum", "EMAIL", "later") or 0)
    assert 0.3 < seconds <= took_s, "one after the other: the time in line is not the call's"
