"""All features at once under random kills: 620 markets for two hours, or less.

DEXORDER_SOAK_MINUTES=120 DEXORDER_SOAK_MARKETS=620 DEXORDER_SOAK_BUSY_SECONDS=6 DEXORDER_SOAK_SEED=1

At the end the candles of the backfills equal the oracle, each request had one status, the trades equal the exchange's,
the trigger has fired once for each second with a trade, the rows of the UDF count all trades of its market, each record
was read and acked, and each event was heard once.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from bench.parts.realtime_memory import missing_and_doubled, start_all, symbols
from dexorder import Client
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import udf_table
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.nightly.backfills import Backfills
from tests.nightly.mesh_load import Events, Records
from tests.nightly.soak_suite import MARKET, PAUSE_SECONDS, UDF, Resources, SoakSuite, Strikes, soak_suite
from tests.nightly.watching import Listener
from tests.rig.processes import until
from tests.rig.report import median_and_worst, print_campaign
from tests.smoke.test_realtime import stored, traded, wait_until_settled

MINUTES = float(os.environ.get("DEXORDER_SOAK_MINUTES", "120"))
MARKETS = int(os.environ.get("DEXORDER_SOAK_MARKETS", "620"))
BUSY_SECONDS = int(os.environ.get("DEXORDER_SOAK_BUSY_SECONDS", "6"))
SEED = int(os.environ.get("DEXORDER_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**30)
CANDLES = 20_000
COMPARED = 3
"""Markets whose trades are compared with the exchange's one by one; of the others ids are missing or doubled."""
SETTLE_SECONDS = 600.0
SQL = "SELECT ts, `close` FROM ohlc_1s WHERE `close` > 0"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 3_600)]


class Trigger:
    """A trigger that fires for each second with a trade of one market."""

    def __init__(self, suite: SoakSuite) -> None:
        self._suite = suite
        with Client(suite.relay, patience_seconds=120) as client:
            client.triggers.add("soak", SQL, [f"{MARKET}.SIM"], {"fire": "level"})
        self._registered_ns = time.time_ns()

    def check(self, last_ns: int) -> int:
        """Wait until it has fired for the seconds before a time; return their number."""
        span = TimeRange(self._registered_ns - SECOND_NS, last_ns)
        trades = traded(self._suite, MARKET.replace("/", ""), span)
        seconds = {time_ns // SECOND_NS * SECOND_NS for _, time_ns, _, _ in trades}
        wanted = {each for each in seconds if self._registered_ns - SECOND_NS <= each < last_ns - SECOND_NS}
        fired: list[int] = []
        deadline_s = time.monotonic() + SETTLE_SECONDS
        with Client(self._suite.relay, patience_seconds=120) as client:
            for each in client.triggers.events("soak"):
                fired += [int(str(row[0])) for row in each.rows]
                if wanted <= set(fired):
                    break
                assert time.monotonic() < deadline_s, sorted(wanted - set(fired))[:10]
        assert len(fired) == len(set(fired)), "it has fired twice for a second"
        return len(wanted)


def udf_rows(suite: SoakSuite) -> list[dict[str, Any]]:
    """Return the rows of the UDF by their sequence."""
    table = udf_table(UDF).load(CatalogSettings.local(suite.directory).load())
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist() if table else []
    return sorted(rows, key=lambda row: row["sequence"])


def check_udf(suite: SoakSuite, trades: int) -> int:
    """Wait until the rows of the UDF count the trades; return their number."""
    until(lambda: len(udf_rows(suite)) >= trades, SETTLE_SECONDS, suite.logs)
    rows = udf_rows(suite)
    assert [dict(row["ints"])["count"] for row in rows] == list(range(1, len(rows) + 1))
    return len(rows)


def check_trades(suite: SoakSuite, begin_ns: int, end_ns: int) -> int:
    """Wait until the trades of some markets are settled; they equal the exchange's. Return their number."""
    compared = 0
    with Client(suite.relay, patience_seconds=120) as client:
        for ticker in symbols(MARKETS)[:COMPARED]:
            wait_until_settled(client, ticker, begin_ns, end_ns)
            name = ticker.removesuffix(".SIM").replace("/", "")
            span, deadline_s = TimeRange(begin_ns, end_ns), time.monotonic() + SETTLE_SECONDS
            expected = traded(suite, name, span)
            while (found := stored(client, ticker, span)) != expected and time.monotonic() < deadline_s:
                time.sleep(1)
            assert found == expected, suite.logs()
            compared += len(found)
    return compared


def test_all_features_at_once_lose_and_double_nothing_under_kills(tmp_path: Path) -> None:
    started_s, chance = time.monotonic(), random.Random(SEED)
    print(f"seed {SEED}, {MARKETS} markets, {MINUTES:g} minutes", flush=True)
    with soak_suite(tmp_path, MARKETS, BUSY_SECONDS) as suite:
        asyncio.run(start_all(suite.relay, symbols(MARKETS), ["1m"]))
        trigger, strikes = Trigger(suite), Strikes(suite, chance)
        with (
            Resources(suite) as resources,
            Listener(suite, "soak") as listener,
            Records(suite) as records,
            Events(suite) as events,
        ):
            with Backfills(suite, "soak", candles=CANDLES, at_once=1) as backfills:
                begin_ns = time.time_ns() // (60 * SECOND_NS) * 60 * SECOND_NS + 60 * SECOND_NS
                while time.monotonic() - started_s < MINUTES * 60:
                    with records.no_commits():  # the strike may be one of the gateway or of Kafka's peers
                        strikes.strike()
                    time.sleep(PAUSE_SECONDS)
                    backfills.check()
            suite.wait_ready()
            end_ns = time.time_ns()
            rows = backfills.assert_all_ended_well(listener.statuses, SETTLE_SECONDS)
            trades = check_trades(suite, begin_ns, end_ns)
            fired = trigger.check(end_ns)
            udf = check_udf(suite, len(traded(suite, MARKET.replace("/", ""), TimeRange(begin_ns, end_ns))))
            records.check()
            events.check()
            total, missing, doubled = missing_and_doubled(suite)
    print_campaign(
        f"All features at once, {MARKETS} markets, seed {SEED}: {strikes.done.total()} strikes, 0 lost, 0 doubled",
        ["what", "number", "remark"],
        ["requests", len(backfills.sent), f"{rows:,} rows equal the oracle, one status each"],
        ["trades", f"{total:,}", f"{missing} ids missing, {doubled} doubled; {trades:,} equal the exchange's"],
        ["firings of the trigger", fired, "each second once"],
        ["rows of the UDF", udf, "their counts have no gap"],
        ["records", len(records.ledger.written), str(records.ledger.repeats())],
        ["events", len(events.sent), "heard once"],
        *([part, len(each), f"ready again after {median_and_worst(each)}"] for part, each in strikes.back_s.items()),
        *([f"MiB of {name}", f"{each[0]:.0f}", f"{each[-1]:.0f} at the end"] for name, each in resources.mib.items()),
        ["descriptors", "", str(resources.growth_of_descriptors())],
        since_s=started_s,
    )
    print(dict(strikes.done))
    assert (missing, doubled) == (0, 0)
    assert not [part for part, growth in resources.growth_of_descriptors().items() if growth > 100]
