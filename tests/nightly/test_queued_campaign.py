"""`kill -9` of the relay within 50 ms of an answer QUEUED: every acknowledged request must survive.

Several clients submit without a pause, so kills land between an answer and the next group commit, and inside commits.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.nightly.backfills import historical
from tests.rig.oracle import minutes
from tests.rig.processes import ForkedService, free_ports
from tests.rig.report import print_campaign
from tests.unit.services.relay.harness import environment

CLIENTS = 8
MOST_DELAY_SECONDS = 0.05
QUESTIONS_AT_ONCE = 64
SubmitResponse = ingest_pb2.SubmitResponse


@dataclass
class Campaign:
    """Successive relay processes on one database.

    Attributes:
        acknowledged: Topic of the answer, by request.
        unanswered: Requests whose answer was lost; they may exist or not.
        in_flight: Number of submissions without an answer at each kill.
    """

    folder: Path
    acknowledged: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, ingest_pb2.SubmitHistoricalRequest] = field(default_factory=dict)
    in_flight: list[int] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._port, self._broker_port = free_ports(2)
        self._environment = environment(self.folder, self._port, self._broker_port)

    async def run(self, kills: int) -> None:
        """Run a relay and kill it, a number of times, then run it once more to check everything."""
        for _ in range(kills):
            async with self._life() as (process, stub):
                await self._all_are_there(stub)
                await self._ask_again(stub)
                await self._submit_until_killed(process, stub)
        async with self._life() as (process, stub):
            await self._all_are_there(stub)
            await self._nothing_else_is_there(stub)
            assert await asyncio.to_thread(process.stop) == 0

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[tuple[ForkedService, Any]]:
        address = f"127.0.0.1:{self._port}"
        with ForkedService("dexorder_relay", self.folder, self._environment) as process:
            await asyncio.to_thread(process.listening, address)  # a channel that was refused would wait for its backoff
            async with open_channel(address) as channel:
                yield process, RelayStubs(channel)

    async def _all_are_there(self, stub: Any) -> None:
        free = asyncio.Semaphore(QUESTIONS_AT_ONCE)

        async def ask(request_id: str, topic: str) -> None:
            async with free:
                answer = await stub.history.GetRequest(pb.GetRequestRequest(request_id=request_id), timeout=60)
            assert answer.record.notification_topic == topic, "forgotten or changed"

        async with asyncio.TaskGroup() as group:
            for request_id, topic in self.acknowledged.items():
                group.create_task(ask(request_id, topic))

    async def _ask_again(self, stub: Any) -> None:
        """Submit requests without an answer again: each is new or was accepted, and is never refused."""
        for request_id, request in self.unanswered.items():
            answer = (await stub.history.SubmitHistorical(request, timeout=60)).answer
            assert answer.status in (SubmitResponse.QUEUED, SubmitResponse.DUPLICATE), answer
            self.acknowledged[request_id] = answer.notification_topic
        self.unanswered.clear()

    async def _submit_until_killed(self, process: ForkedService, stub: Any) -> None:
        answered = asyncio.Event()
        delay_s = random.uniform(0, MOST_DELAY_SECONDS)

        async def client() -> None:
            while True:
                number = next(self._numbers)
                request_id = f"q-{number}"
                self.unanswered[request_id] = request = historical(request_id, "BTC/USDT", minutes(number * 60, 60))
                try:
                    answer = (await stub.history.SubmitHistorical(request, timeout=60)).answer
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                    return
                assert answer.status == SubmitResponse.QUEUED, answer
                del self.unanswered[request_id]
                self.acknowledged[request_id] = answer.notification_topic
                answered.set()
                await asyncio.sleep(random.uniform(0, 0.005))

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client())
            await answered.wait()
            await asyncio.sleep(delay_s)
            process.process.kill()
            self.in_flight.append(len(self.unanswered))

    async def _nothing_else_is_there(self, stub: Any) -> None:
        """Check that the list has each acknowledged request once, and besides them at most unanswered ones."""
        listed: list[str] = []
        token = ""
        while True:
            answer = await stub.history.ListRequests(
                pb.ListRequestsRequest(page_size=1_000, page_token=token), timeout=60
            )
            listed += [record.request.request_id for record in answer.records]
            token = answer.next_page_token
            if not token:
                break
        assert len(listed) == len(set(listed))
        assert set(self.acknowledged) <= set(listed) <= set(self.acknowledged) | set(self.unanswered)


KILLS = int(os.environ.get("DEXORDER_SOAK_QUEUED_KILLS", "1000"))
KILLS_A_DATABASE = 25
"""Every restart asks for all that was acknowledged before, so that has to stay few enough."""
LANES = 2
"""Relays at the same time, each with a database of its own."""


@pytest.mark.soak
@pytest.mark.timeout(KILLS * 5 + 300)
async def test_what_was_acknowledged_is_never_forgotten(tmp_path: Path) -> None:
    started_s = time.monotonic()
    left = itertools.count(KILLS, -KILLS_A_DATABASE)
    campaigns: list[Campaign] = []

    async def lane() -> None:
        while (kills := min(next(left), KILLS_A_DATABASE)) > 0:
            campaigns.append(campaign := Campaign(tmp_path / str(len(campaigns))))
            await campaign.run(kills)

    async with asyncio.TaskGroup() as group:
        for _ in range(LANES):
            group.create_task(lane())
    in_flight = [number for campaign in campaigns for number in campaign.in_flight]
    assert len(in_flight) == KILLS
    print_campaign(
        "QUEUED, then kill -9 of the relay within 50 ms",
        ["kills", "acknowledged", "forgotten", "without an answer at a kill"],
        [KILLS, f"{sum(len(c.acknowledged) for c in campaigns):,}", 0, f"mean {statistics.mean(in_flight):.1f}"],
        since_s=started_s,
    )


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_acknowledged_requests_survive_a_kill(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "relay")
    await campaign.run(10)
    assert len(campaign.in_flight) == 10 and len(campaign.acknowledged) >= 10
