"""An exchange with two hosts, of which one lacks candles or fails: unmodified ccxt, two simulated exchanges."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ccxt.async_support as ccxt
import pytest
from prometheus_client import CollectorRegistry

from bench.parts.completeness.timed_outcome import Table, TimedOutcome, judge
from bench.parts.completeness.virtual import VirtualWorld, virtual_world
from dexorder_common.exchanges import Exchange
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.guarded_client import Hosts
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from tests.examples import first_in_gate
from tests.fixtures_ccxt import cheap_clients as cheap_clients

NOW_NS = 1_706_745_600 * SECOND_NS
MINUTE_NS = 60 * SECOND_NS
SPAN = TimeRange(NOW_NS - 30_000 * MINUTE_NS, NOW_NS - 28_000 * MINUTE_NS)
HIDDEN = TimeRange(SPAN.start_ns + 1_007 * MINUTE_NS, SPAN.start_ns + 1_207 * MINUTE_NS)
ABSENT = {"kind": "absent", "span": [HIDDEN.start_ns, HIDDEN.end_ns]}
SYMBOL = "BTC/USDT"


@asynccontextmanager
async def two_hosts(folder: Path, *, known: bool = True) -> AsyncIterator[tuple[VirtualWorld, VirtualWorld]]:
    """Yield an exchange whose ingestor knows the second host (unless not ``known``), and that host."""
    async with virtual_world(folder / "a", now_ns=NOW_NS) as own, virtual_world(folder / "b", now_ns=NOW_NS) as other:
        hosts = [urlsplit(str(world.exchange.rest_url)).netloc for world in (own, other)]
        other_hosts = {hosts[0]: (hosts[1],)} if known else {}
        venue, settings = own.venue, IngestorSettings(rate_limit_dir=folder)
        own.venue = CcxtVenue(
            "SIM",
            own.exchange.model_copy(update={"other_hosts": other_hosts}),
            settings,
            IngestorMetrics(CollectorRegistry()),
            own.time,
            sleep=own.time.sleep,
        )
        await venue.close()
        yield own, other


async def outcome(world: VirtualWorld) -> TimedOutcome:
    found, table = await world.fetch(SYMBOL, 60, SPAN, Agreement()), Table()
    table.add(found.pages, found.missing)
    rules, world.simulator.plan = world.simulator.plan, type(world.simulator.plan)((), seed=1)
    truth = world.truth(SYMBOL, "1m", SPAN)
    world.simulator.plan = rules
    return judge(truth, SPAN, table)


async def test_candles_that_one_host_lacks_are_found_at_the_other(tmp_path: Path) -> None:
    async with two_hosts(tmp_path) as (own, other):
        own.set_faults([ABSENT])
        assert (await outcome(own)).is_equal
        assert other.calls(), "it was queried"


async def test_without_the_other_host_nothing_shows_them(tmp_path: Path) -> None:
    async with two_hosts(tmp_path, known=False) as (own, other):
        own.set_faults([ABSENT])
        assert (await outcome(own)).provisional == 200
        assert not other.calls()


@pytest.mark.parametrize("seed", first_in_gate((16, *range(6, 13)), 3))
@pytest.mark.parametrize("fault", [ABSENT, {"kind": "empty"}, {"kind": "http_502"}])
async def test_other_host_that_is_bad_costs_no_candle(tmp_path: Path, fault: dict[str, Any], seed: int) -> None:
    """The exchange's own host leaves ten candles out of one answer in two, so there is something to ask about."""
    async with two_hosts(tmp_path) as (own, other):
        own.set_faults([{"kind": "hole", "probability": 0.5}], seed=seed)
        other.set_faults([fault])
        found = await outcome(own)
    assert found.is_equal


@pytest.mark.parametrize(
    ("name", "own", "other", "path"),
    [
        ("bybit", "api.bybit.com", "api.bytick.com", "public"),
        ("okx", "www.okx.com", "aws.okx.com", "rest"),
        ("binance", "api.binance.com", "api1.binance.com", "public"),
    ],
)
def test_hosts_of_ccxt_are_replaced_in_turn(name: str, own: str, other: str, path: str) -> None:
    client = getattr(ccxt, name)()
    before = dict(client.urls["api"])
    hosts = Hosts(client, {own: (other, "third.example.com")})

    def host() -> str:
        return str(urlsplit(client.implode_hostname(client.urls["api"][path])).netloc)

    seen = [host()]
    for _ in range(4):
        hosts.use_next()
        seen.append(host())
    assert seen == [own, other, "third.example.com", own, other]
    hosts.fail()
    assert host() == own
    hosts.use_next()
    assert host() == "third.example.com", "the one that failed is left out"
    hosts.reset()
    assert client.urls["api"] == before
    hosts.use_next()
    assert host() == other, "and used again by the next dispatch"


def test_exchange_without_other_hosts_stays_at_its_own() -> None:
    client = ccxt.okx()
    hosts = Hosts(client, {})
    hosts.use_next()
    hosts.fail()
    assert client.implode_hostname(client.urls["api"]["rest"]) == "https://www.okx.com"


@pytest.mark.parametrize("host", ["https://api1.binance.com", "", " api1.binance.com"])
def test_what_is_not_a_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host; use api"):
        Exchange(ccxt="binance", other_hosts={"api.binance.com": (host,)})
