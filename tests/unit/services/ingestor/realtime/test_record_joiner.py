"""Records of many jobs in joined ones: order, limits, and who learns of a failure. The gateway is a list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dexorder_common.kafka.joined_record import MAX_JOINED_BYTES, TradesRecord, lane_of, records_in
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.page import PageHeaders
from dexorder_ingestor.publisher import CallRefused
from dexorder_ingestor.realtime.record_joiner import RecordJoiner
from tests.fakes.trades import trades_head

MARKETS = [f"COIN{number}/USDT.SIM" for number in range(40)]
BAD = b"bad"


class Gateway:
    """Takes joined records one at a time in each lane, refuses those with a bad one, and answers when it may."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[TradesRecord]]] = []
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self._busy: set[str] = set()

    async def produce_record(self, topic: str, key: str, headers: Mapping[str, str], value: bytes) -> None:
        assert topic == "dexorder.ticks" and key not in self._busy
        self._busy.add(key)
        try:
            await self.open.wait()
            records = list(records_in(headers, value))
            if self.error:
                raise self.error
            if any(each.value == BAD for each in records):
                raise CallRefused("Produce failed: too large")
            self.sent.append((key, records))
        finally:
            self._busy.discard(key)

    @property
    def records(self) -> list[TradesRecord]:
        return [each for _, records in self.sent for each in records]


def new() -> tuple[Gateway, RecordJoiner]:
    gateway: Any = Gateway()
    return gateway, RecordJoiner(gateway)


def head(ticker: str, page: int = 0) -> PageHeaders:
    return trades_head(page, page + 1, page=page, ticker=ticker)


async def test_records_of_one_moment_share_one_of_each_lane_and_a_markets_keep_their_order() -> None:
    gateway, joiner = new()

    async def job(ticker: str) -> None:
        for page in range(5):
            await joiner.produce(head(ticker, page), b"%d" % page)

    await asyncio.gather(*map(job, MARKETS))
    assert len(gateway.sent) == 5 * len(set(map(lane_of, MARKETS)))
    for ticker in MARKETS:
        own = [(r.headers.page, r.value) for r in gateway.records if r.headers.ticker == ticker]
        assert own == [(page, b"%d" % page) for page in range(5)]
    assert all(lane_of(each.headers.ticker) == key for key, records in gateway.sent for each in records)


async def test_large_records_are_joined_up_to_the_limit_and_one_above_it_goes_alone() -> None:
    gateway, joiner = new()
    ticker = MARKETS[0]
    sizes = [MAX_JOINED_BYTES // 2, MAX_JOINED_BYTES // 3, MAX_JOINED_BYTES // 3, 2 * MAX_JOINED_BYTES, 10]
    await asyncio.gather(*(joiner.produce(head(ticker, n), bytes(size)) for n, size in enumerate(sizes)))
    assert [[each.headers.page for each in records] for _, records in gateway.sent] == [[0, 1], [2], [3], [4]]


async def test_only_the_job_whose_record_is_refused_fails() -> None:
    gateway, joiner = new()
    ended = await asyncio.gather(
        *(joiner.produce(head(each), BAD if each == MARKETS[7] else b"") for each in MARKETS), return_exceptions=True
    )
    assert [isinstance(each, Unavailable) for each in ended] == [each == MARKETS[7] for each in MARKETS]
    assert sorted(r.headers.ticker for r in gateway.records) == sorted({*MARKETS} - {MARKETS[7]})


async def test_all_jobs_learn_that_the_gateway_is_away_and_the_next_records_are_sent() -> None:
    gateway, joiner = new()
    gateway.error = Unavailable("Produce failed: UNAVAILABLE")
    ended = await asyncio.gather(*(joiner.produce(head(each), b"") for each in MARKETS), return_exceptions=True)
    assert all(isinstance(each, Unavailable) for each in ended)
    gateway.error = None
    await joiner.produce(head(MARKETS[0]), b"")
    assert len(gateway.records) == 1


async def test_a_job_that_ends_while_it_waits_takes_no_other_with_it() -> None:
    gateway, joiner = new()
    gateway.open.clear()
    same = [each for each in MARKETS if lane_of(each) == lane_of(MARKETS[0])]
    jobs = [asyncio.create_task(joiner.produce(head(each), b"")) for each in same]
    await asyncio.sleep(0.03)
    late = asyncio.create_task(joiner.produce(head(same[0], 1), b""))
    await asyncio.sleep(0)
    jobs[0].cancel()
    late.cancel()
    gateway.open.set()
    await asyncio.gather(*jobs[1:])
    await asyncio.sleep(0.03)
    assert [each.headers.page for each in gateway.records] == [0] * len(same)  # what had not left was not sent


async def test_the_end_leaves_nobody_waiting() -> None:
    gateway, joiner = new()
    gateway.open.clear()
    jobs = [asyncio.create_task(joiner.produce(head(each), b"")) for each in MARKETS]
    await asyncio.sleep(0.03)
    await joiner.close()
    done, waiting = await asyncio.wait(jobs, timeout=1)
    assert not waiting and all(each.cancelled() for each in done)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await joiner.produce(head(MARKETS[0]), b"")
