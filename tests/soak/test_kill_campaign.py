"""`kill -9` of every part again and again, spread over backfills of 100,000 candles.

    make soak                       # 50 kills of each part
    DEXORDER_SOAK_KILLS=5 make soak

Each backfill takes a range of its own, so that it really fetches; kills fall into it until their number is reached.
Afterwards the whole table must equal the oracle, and every request must have one status. Prints what it saw.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from dexorder import Client
from dexorder.records import RequestRecord, Status
from services.common.market import TimeRange
from tests.smoke.harness import Suite, assert_equal, minutes, oracle, running_suite, wait_for

KILLS = int(os.environ.get("DEXORDER_SOAK_KILLS", "50"))
CANDLES = 100_000
PARTS = {
    "relay": ("BTC/USDT", "ETH/BTC"),
    "ingestor": ("ETH/USDT", "BTC/USD"),
    "gateway": ("LTC/USDT", "ETH/USD"),
    "udsource": ("BNB/USDT", "TRX/USDT"),
    "spark": ("XRP/USDT", "ADA/USDT"),
}
"""Symbols of each part's backfills; every one of them was listed before FIRST_MINUTE."""
FIRST_MINUTE = -2_900_000
RANGES = 40
"""Backfills a symbol has room for between FIRST_MINUTE and now."""
RECOVERY_SECONDS = {"relay": 10, "ingestor": 25, "gateway": 10, "udsource": 10, "spark": 60}
FAULTS = [
    {"kind": kind, "every": every, "path": "/api/v3/klines"}
    for kind, every in (("empty", 37), ("html", 41), ("http_502", 43), ("hole", 47), ("drop_last", 53))
]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(KILLS * 300 + 600)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    with running_suite(
        tmp_path_factory.mktemp("soak") / "state",
        DEXORDER_SIM_FAULTS=json.dumps(FAULTS),
        DEXORDER_SIM_LATENCY_MS="150",
    ) as running:
        yield running


@dataclass
class Backfills:
    """Requests one after the other, in a thread, until told to stop."""

    suite: Suite
    symbols: tuple[str, ...]
    stop: threading.Event = field(default_factory=threading.Event)
    done: list[tuple[str, TimeRange, RequestRecord]] = field(default_factory=list)
    error: BaseException | None = None

    def run(self) -> None:
        """Every request must end; the client outlives restarts of the relay."""
        try:
            with Client(self.suite.relay, patience_seconds=120) as client:
                for number in itertools.count():
                    if self.stop.is_set():
                        return
                    symbol = self.symbols[number // RANGES]
                    span = minutes(FIRST_MINUTE + number % RANGES * CANDLES, CANDLES)
                    request_id = f"{symbol}-{number}"
                    client.history(
                        f"{symbol}.SIM", "1m", span.start_ns, span.end_ns, request_id=request_id, timeout=900
                    )
                    self.done.append((symbol, span, client.get_request(request_id)))
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("part", PARTS)
def test_kills_spread_over_backfills_lose_and_double_nothing(suite: Suite, part: str) -> None:
    backfills = Backfills(suite, PARTS[part])
    thread = threading.Thread(target=backfills.run)
    thread.start()
    recoveries = []
    try:
        for _ in range(KILLS):
            time.sleep(random.uniform(0.5, 6.0))
            assert backfills.error is None, backfills.error
            recoveries.append(kill_and_recover(suite, part))
    finally:
        backfills.stop.set()
        thread.join(900)
    assert backfills.error is None, f"{backfills.error!r}\n{suite.logs()}"
    assert not thread.is_alive()
    for symbol, span, record in backfills.done:
        assert (record.status, record.row_count) == (Status.OK, CANDLES)
        assert_equal(suite.rows(f"{symbol}.SIM", 60, span), oracle(symbol, "1m", span))
    print(
        f"\n| {part} | {KILLS} kills | {len(backfills.done)} backfills of {CANDLES:,} rows, 0 lost, 0 doubled | "
        f"ready again: median {statistics.median(recoveries):.1f} s, worst {max(recoveries):.1f} s |"
    )
    assert max(recoveries) <= RECOVERY_SECONDS[part]


def kill_and_recover(suite: Suite, part: str) -> float:
    """Seconds until the part is ready again, as a new process."""
    before = suite.pid(part)
    suite.kill(part)
    started = time.monotonic()

    def ready() -> bool:
        entry = json.loads((suite.directory / "suite.json").read_text())["parts"][part]
        return bool(entry["state"] == "ready" and entry["pid"] != before)

    wait_for(ready, 180, suite.logs)
    return time.monotonic() - started
