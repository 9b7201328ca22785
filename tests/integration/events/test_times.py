"""Checks 3, 7 and 11 with the gateway's default timeouts; a frozen gateway and a frozen client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dexorder.events import Channel, FinalStatus, Outcome
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, HEARTBEAT_MS, event, until
from tests.integration.events.provider_servers import Answer, ProviderServers
from tests.integration.events.rig import Rig, make_rig
from tests.paths import ROOT

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(120)]
ACTIVE_SESSION, WEB, TELEGRAM, EMAIL = given.ACTIVE_SESSION, given.WEB, given.TELEGRAM, given.EMAIL
FREEZES = 3
SESSION_ACK_S, TOLERANCE_S = 5.0, 0.25
WAIT_SECONDS, FREEZE_AFTER_S = 60.0, 1.0
RETRY_AFTER_S = 3
USERS = 5


@pytest.fixture(scope="module")
def patient(provider_servers: ProviderServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a gateway with default settings."""
    made = make_rig(tmp_path_factory.mktemp("patient"), provider_servers)
    with made.gateway:
        yield made
    assert made.leaked() == []


async def test_03_a_frozen_gateway_is_noticed_and_normal_goes_the_other_way(patient: Rig, tmp_path: Path) -> None:
    user = patient.user()
    took_s: list[float] = []
    queued: list[str] = []
    async with (
        await patient.bot(tmp_path / "outbox.db", on_queued=queued.append) as bot,
        patient.container() as container,
        patient.session(user, "native") as session,
    ):
        for number in range(FREEZES):
            await container.subscribed(user)
            await until(lambda: bot.subscribed(user))
            fast = await bot.publish(user, "ORDER_FILLED", {}, "NORMAL", ["WEB"])
            heard = await session.next()
            assert (heard.event.event_id, heard.sequence) == (fast, 0), "on 5570 it is not kept"
            assert await bot.outcome(fast) == Outcome(fast, FinalStatus.SENT)
            await asyncio.sleep(1 + 0.2 * number)  # each freeze begins at another point between heartbeats
            with frozen(patient.gateway.pid):
                took_s += await asyncio.gather(
                    container.subscribed(user, wanted=False), seconds_until(lambda: not bot.subscribed(user))
                )
                sure = await bot.publish(user, "ORDER_FILLED", {}, "NORMAL", ["WEB"])
            heard = await session.take()
            assert heard.event.event_id == sure and heard.sequence > 0
            assert await bot.outcome(sure) == Outcome(sure, FinalStatus.DELIVERED, Channel.WEB)
            # on 5571, where it has a place in the log; its QUEUED may be lost with the closed connection
            assert queued in ([], [sure])
            queued.clear()
        await session.hears_nothing()
    assert min(took_s) > 2 * HEARTBEAT_MS / 1000 - TOLERANCE_S, took_s


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def seconds_until(done: Callable[[], bool]) -> float:
    """Return the elapsed time."""
    started_s = time.monotonic()
    await until(done)
    return time.monotonic() - started_s


async def test_07_escalation_is_on_time(patient: Rig) -> None:
    """Never early, by the gateway's own record. ``bench.events`` measures that it is not late."""
    late_s = await asyncio.gather(*(escalation_s(patient, number) for number in range(USERS)))
    assert min(late_s) >= SESSION_ACK_S - TOLERANCE_S, late_s


async def escalation_s(rig: Rig, number: int) -> float:
    """From the event shown to a silent client to the call of the next channel."""
    await asyncio.sleep(number * 0.3)
    await rig.reachable(user := rig.user())
    async with rig.container(name := rig.name()) as container, rig.session(user) as session:
        await container.queued(sent := event(user, "c-1", CRITICAL, [ACTIVE_SESSION, TELEGRAM]))
        heard = await session.next()
        assert await container.delivered(sent) == TELEGRAM
        await session.ack(session.place(heard))
        await container.hears_nothing()
    record = await rig.record(name, "c-1")
    assert record is not None and len(rig.provider_servers.telegram.calls(user)) == 1
    shown, sent_out = record.attempts
    assert shown.channel in (ACTIVE_SESSION, WEB) and sent_out.channel == TELEGRAM
    return (sent_out.started_ms - shown.started_ms) / 1000


@pytest.mark.nightly
async def test_07_a_frozen_client_is_passed_over_and_cut(patient: Rig, tmp_path: Path) -> None:
    await patient.reachable(user := patient.user())
    gateway = patient.gateway

    def open_sessions() -> float:
        return gateway.metric('dexorder_gateway_event_sessions{kind="grpc"}')

    assert open_sessions() == 0
    async with patient.container(name := patient.name()) as container:
        with tail(patient, user, tmp_path) as client:
            await container.subscribed(user)
            await container.queued(seen := event(user, "c-0", CRITICAL, [ACTIVE_SESSION, TELEGRAM]))
            assert await container.delivered(seen) == WEB
            await asyncio.sleep(FREEZE_AFTER_S)
            with frozen(client.pid):
                await container.queued(sent := event(user, "c-1", CRITICAL, [ACTIVE_SESSION, TELEGRAM]))
                assert await container.delivered(sent) == TELEGRAM
                assert open_sessions() == 1, "its session is still open, so c-1 was shown there"
                await until(lambda: open_sessions() == 0, WAIT_SECONDS)
                await container.subscribed(user, wanted=False)
            await container.subscribed(user)
            await container.hears_nothing()
    record = await patient.record(name, "c-1")
    assert record is not None and [attempt.outcome for attempt in record.attempts] == ["no ack", "sent"]
    assert len(patient.provider_servers.telegram.calls(user)) == 1


@contextmanager
def tail(rig: Rig, user: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``dexorder events tail``, which acks what it shows."""
    file = folder / "token"
    file.touch(0o600)
    file.write_text(rig.token(user))
    command = [sys.executable, "-m", "dexorder", "events", "tail", "--token-file", str(file), "--json"]
    with (folder / "tail.log").open("wb") as log:
        process = subprocess.Popen([*command, "--gateway", rig.gateway.address], cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_11_retry_after_of_three_seconds(patient: Rig) -> None:
    await patient.reachable(user := patient.user())
    telegram = patient.provider_servers.telegram
    telegram.plan(user, Answer(429, retry_after=RETRY_AFTER_S))
    async with patient.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [TELEGRAM]))
        await container.queued(other := event(user, "c-2", CRITICAL, [EMAIL]))
        assert await container.delivered(other) == EMAIL
        assert await container.delivered(sent) == TELEGRAM
    refused, taken = telegram.calls(user)
    assert taken.at_s - refused.at_s >= RETRY_AFTER_S
