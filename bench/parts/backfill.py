"""(b) A long backfill through the whole chain, compared with ccxt alone fetching the same pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ccxt.async_support as ccxt

from bench.parts.cpu import all_cpu_seconds
from dexorder import Client
from dexorder.client.inputs import make_request
from dexorder_common.exchanges import Exchange, Slots, override_urls
from dexorder_common.model.history import RequestStatus
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.rig.oracle import minutes
from tests.rig.report import Row, table
from tests.rig.suite import Suite

CLIENTS = 4
"""Of ccxt alone; more of them are no faster, as they share the throttle."""
PAGE = 1_000
ROUNDS = (("BTC/USDT", "LTC/USDT"), ("BNB/USDT", "XRP/USDT"))
"""For each round the symbol of the chain and that of ccxt alone: nothing is served from what the other fetched."""
FIRST_MINUTE = -1_400_000


def measure(suite: Suite, candles: int) -> str:
    """Run both twice, alternately; the ratio is that of the better runs."""
    span = minutes(FIRST_MINUTE, candles)
    ours, alone, cpu = list[float](), list[float](), dict[str, float]()
    for chain_symbol, ccxt_symbol in ROUNDS:
        alone.append(asyncio.run(ccxt_alone(suite, ccxt_symbol, span)))
        before = all_cpu_seconds(suite)
        ours.append(chain(suite, chain_symbol, span, candles))
        cpu = {part: seconds - before[part] for part, seconds in all_cpu_seconds(suite).items()}
    rate, limit = candles / min(ours), candles / min(alone)
    row = Row(
        f"{candles:,} one-minute candles, {Slots().historical} slots, ccxt's throttle of 20 ms a call",
        f"{', '.join(f'{s:.1f}' for s in ours)} s: {rate:,.0f} candles/s",
        f"{', '.join(f'{s:.1f}' for s in alone)} s: {limit:,.0f} candles/s",
        f"{rate / limit:.2f}",
        "at least 1.0",
    )
    each = ", ".join(f"{part} {seconds * 1e6 / candles:.1f}" for part, seconds in cpu.items())
    costs = Row(f"CPU s a million candles, all {sum(cpu.values()) * 1e6 / candles:.1f}", each, "", "", "")
    return table("(b) Backfill; limit: ccxt alone, the same pages and throttle", [row, costs])


def chain(suite: Suite, symbol: str, span: TimeRange, candles: int) -> float:
    """Return the seconds from submission to notification; then every row is in the table."""
    with Client(suite.relay) as client:
        started = time.perf_counter()
        request = make_request(f"backfill-{symbol}", f"{symbol}.SIM", 60, span.start_ns, span.end_ns)
        client.submit(request)
        ended = client.wait(request.request_id, timeout=1_800)
        seconds = time.perf_counter() - started
    if (ended.record.status, ended.record.row_count) != (RequestStatus.OK, candles):
        raise AssertionError(f"the request ended with {ended.record}")
    return seconds


async def ccxt_alone(suite: Suite, symbol: str, span: TimeRange) -> float:
    """Return the seconds to fetch every page with a few clients, and discard it."""
    step_ms = PAGE * 60_000
    pages = iter(range(span.start_ns // 1_000_000, span.end_ns // 1_000_000, step_ms))
    async with ccxt_clients(suite) as clients:
        started = time.perf_counter()
        counts = await asyncio.gather(*(pull(client, symbol, pages, step_ms) for client in clients))
        seconds = time.perf_counter() - started
    if sum(counts) != (span.end_ns - span.start_ns) // (60 * SECOND_NS):
        raise AssertionError(f"ccxt alone fetched {sum(counts)} candles")
    return seconds


@asynccontextmanager
async def ccxt_clients(suite: Suite) -> AsyncIterator[list[Any]]:
    """Open clients with one throttle and the markets loaded."""
    clients = [make_client(suite.address("sim")) for _ in range(CLIENTS)]
    try:
        await clients[0].load_markets()
        for client in clients[1:]:
            client.throttler = clients[0].throttler
            client.set_markets_from_exchange(clients[0])
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def make_client(address: str) -> Any:
    url = f"http://{address}"
    client = ccxt.binance({"enableRateLimit": True, "options": {"fetchMarkets": {"types": ["spot"]}}})
    client.urls["api"] = override_urls(client.urls["api"], Exchange(ccxt="binance", rest_url=url))
    return client


async def pull(client: Any, symbol: str, pages: Any, step_ms: int) -> int:
    count = 0
    for since_ms in pages:
        rows = await client.fetch_ohlcv(symbol, "1m", since_ms, PAGE, {"until": since_ms + step_ms - 1})
        count += len(rows)
    return count
