"""Trades and candles through the whole chain while sockets fail, each part is killed once, and Kafka is stopped."""

from __future__ import annotations

import time

import pytest

from dexorder import Client
from dexorder_common.model.coverage import CoverageKind
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import SECOND_NS, from_datetime
from tests.rig.suite import Suite
from tests.smoke.conftest import FAULTS

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]

MINUTE_NS = 60 * SECOND_NS
SYMBOLS = {"LTC/USDT": "LTCUSDT", "DOGE/USDT": "DOGEUSDT"}
FAULTS_OF_SOCKETS = ("ws_close", "ws_garbage", "ws_silence", "ws_abort", "ws_half")
KILLED = ("ingestor", "relay", "gateway", "udsource", "spark")
KAFKA_SECONDS = 8.0
"""Longer than the gateway and udsource take to see that Kafka does not answer."""
DEAF_SECONDS, BEHIND_SECONDS = 14.0, 20.0
LASTING_SECONDS = 120.0
"""Longest time, without faults, until the table has every trade, or coverage calls its time provisional."""
PROVISIONAL = (CoverageKind.PROVISIONAL, CoverageKind.PROVISIONAL_ROWS)
Trade = tuple[str, int, float, float]


def traded(suite: Suite, name: str, span: TimeRange) -> list[Trade]:
    """Return the exchange's trades in a range by REST, which has no faults, by id."""
    first_ms, last_ms = -(-span.start_ns // 1_000_000), -(-span.end_ns // 1_000_000) - 1
    found: dict[int, Trade] = {}
    while first_ms <= last_ms:
        page = suite.exchange(f"/api/v3/aggTrades?symbol={name}&startTime={first_ms}&endTime={last_ms}&limit=1000")
        found |= {t["a"]: (str(t["a"]), t["T"] * 1_000_000, float(t["p"]), float(t["q"])) for t in page}
        if len(page) < 1000:
            break
        first_ms = page[-1]["T"]  # by time, as ids may begin again
    return [found[number] for number in sorted(found) if found[number][1] < span.end_ns]


def candles(suite: Suite, name: str, span: TimeRange) -> dict[int, tuple[float, ...]]:
    """Return the exchange's candles of minutes that open in a range, by open time; built from its trades."""
    found: dict[int, tuple[float, ...]] = {}
    for _, time_ns, price, amount in traded(suite, name, span):
        open_ns = time_ns // MINUTE_NS * MINUTE_NS
        first, high, low, _, volume = found.get(open_ns, (price, price, price, price, 0.0))
        found[open_ns] = (first, max(high, price), min(low, price), price, volume + amount)
    return found


def stored(client: Client, ticker: str, span: TimeRange) -> list[Trade]:
    """Return the trades of the table in a range, by id."""
    rows = client.trades(ticker, span.start_ns, span.end_ns).to_pylist()
    found = [(row["trade_id"], from_datetime(row["time"]), row["price"], row["amount"]) for row in rows]
    return sorted(found, key=lambda trade: int(trade[0]))


def wait_until_settled(client: Client, ticker: str, begin_ns: int, time_ns: int) -> None:
    """Wait until coverage says that the trades before a time, and all candles from another one to it, are stored."""
    candles_of = TimeRange(begin_ns, time_ns // MINUTE_NS * MINUTE_NS)
    wait_until_known(client, ticker, (0, TimeRange(time_ns - 1, time_ns)), (60, candles_of))


def wait_until_known(client: Client, ticker: str, *wanted: tuple[int, TimeRange]) -> None:
    """Wait until coverage has some spans, each of a period in seconds; 0 for trades."""
    deadline = time.monotonic() + 180
    for period, span in wanted:
        while missing := subtract([span], [each.span for each in client.coverage(ticker, period).known]):
            assert time.monotonic() < deadline, f"{ticker} {period}: {missing}\n{client.list_realtime(ticker=ticker)}"
            time.sleep(0.5)


def test_no_trade_is_lost_or_doubled_while_sockets_fail_and_parts_are_killed(smoke_suite: Suite) -> None:
    """Requests for history end in the middle of what the subscriptions bring: no candle is missing or doubled there."""
    suite, started_ns = smoke_suite, time.time_ns()
    minute_ns = started_ns // MINUTE_NS * MINUTE_NS
    since_ns, begin_ns = minute_ns - 2 * MINUTE_NS, minute_ns - 12 * MINUTE_NS
    with Client(suite.relay, patience_seconds=60) as client:
        names = [client.start_realtime(f"{symbol}.SIM", ["1m"], since=since_ns) for symbol in SYMBOLS]
        for name, symbol in zip(names, SYMBOLS, strict=True):
            client.submit(HistoryRequest(f"before-{name}", f"{symbol}.SIM", begin_ns, minute_ns, 60))
        for fault, part in zip(FAULTS_OF_SOCKETS, KILLED, strict=True):
            time.sleep(3)
            suite.exchange("/sim/sockets", {"kind": fault})
            time.sleep(3)
            suite.kill(part)
            suite.wait_ready()
        with suite.frozen("kafka"):
            time.sleep(KAFKA_SECONDS)
        suite.wait_ready()
        end_ns = max(time.time_ns(), started_ns + 2 * MINUTE_NS)
        span = TimeRange(since_ns, end_ns)
        for symbol, name in SYMBOLS.items():
            ticker = f"{symbol}.SIM"
            wait_until_settled(client, ticker, begin_ns, end_ns)
            expected = traded(suite, name, span)
            assert len(expected) > 100
            assert stored(client, ticker, span) == expected, suite.logs()
            whole = TimeRange(begin_ns, end_ns // MINUTE_NS * MINUTE_NS)
            rows = client.read_stored(ticker, "1m", whole.start_ns, whole.end_ns).to_pylist()
            found = {from_datetime(row["open_time"]): row for row in rows}
            assert len(found) == len(rows), "doubled candles"
            for open_ns, (first, high, low, close, volume) in candles(suite, name, whole).items():
                row = found.pop(open_ns)
                assert (row["open"], row["high"], row["low"], row["close"]) == (first, high, low, close)
                assert row["volume"] == pytest.approx(volume, rel=1e-9)
            assert not found, "candles without a trade"
        for each in names:
            client.stop_realtime(each)
        assert not [each for each in client.list_realtime().subscriptions if each.subscription.subscription_id in names]


def unnamed(client: Client, suite: Suite, symbol: str, span: TimeRange) -> list[Trade]:
    """Return the exchange's trades that the table lacks, and whose time coverage does not call provisional."""
    ticker = f"{symbol}.SIM"
    named = [each.span for each in client.coverage(ticker, 0).known if each.kind in PROVISIONAL]
    known = {each[:2] for each in stored(client, ticker, span)}
    lacking = [each for each in traded(suite, symbol.replace("/", ""), span) if each[:2] not in known]
    return [each for each in lacking if not any(s.start_ns <= each[1] < s.end_ns for s in named)]


def invented(client: Client, suite: Suite, symbol: str, span: TimeRange) -> list[Trade]:
    """Return the trades of the table that the exchange does not have with these values, and second copies."""
    rest = traded(suite, symbol.replace("/", ""), span)
    found = []
    for each in stored(client, f"{symbol}.SIM", span):
        if each in rest:
            rest.remove(each)
        else:
            found.append(each)
    return found


def test_every_trade_is_stored_or_its_time_is_named_after_faults_that_last_and_a_kill_in_each(
    smoke_suite: Suite,
) -> None:
    """Sockets are deaf beside a REST that is behind, then beside ids that begin again; the ingestor dies in both."""
    suite, symbol, name = smoke_suite, "BNB/USDT", "BNBUSDT"
    behind = {"kind": "behind", "lag_s": BEHIND_SECONDS, "path": "/api/v3/aggTrades", "symbol": name}
    deaf = {"kind": "ws_freeze", "hang_s": DEAF_SECONDS}
    with Client(suite.relay, patience_seconds=60) as client:
        subscription, start_ns = client.start_realtime(f"{symbol}.SIM"), time.time_ns()
        wait_until_known(client, f"{symbol}.SIM", (0, TimeRange(start_ns - 1, start_ns)))
        try:
            suite.exchange("/sim/faults", [*FAULTS, behind])
            suite.exchange("/sim/sockets", deaf)
            time.sleep(DEAF_SECONDS / 3)
            suite.kill_and_wait("ingestor", 120)
            time.sleep(DEAF_SECONDS / 3)
            suite.exchange("/sim/faults", FAULTS)
            suite.exchange("/sim/sockets", {**deaf, "hang_s": DEAF_SECONDS / 2})
            suite.exchange("/sim/ids", {"symbol": name})
            time.sleep(3)
            suite.kill_and_wait("ingestor", 120)
        finally:
            suite.exchange("/sim/faults", FAULTS)
        span = TimeRange(start_ns, time.time_ns())
        wait_until_known(client, f"{symbol}.SIM", (0, TimeRange(span.end_ns - 1, span.end_ns)))
        deadline_s = time.monotonic() + LASTING_SECONDS
        while (lacking := unnamed(client, suite, symbol, span)) and time.monotonic() < deadline_s:
            time.sleep(1)
        assert not lacking, suite.logs()
        assert not invented(client, suite, symbol, span)
        assert len({each[0] for each in traded(suite, name, span)}) > 10
        client.stop_realtime(subscription)
