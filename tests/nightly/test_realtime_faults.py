"""Faults that last and go together, on a whole suite: deaf sockets beside a REST that is behind while each part is
killed in turn, ids that begin again, trades that are published late, messages with other prices, and a market that is
delisted.

Judged by the exchange's trades over table and coverage: at no sampled moment does the table lack a trade of a claimed
span, and within a minute after the last fault all trades are there, or named as provisional.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from bench.parts.completeness.live import Sample, Sampler
from bench.parts.realtime_memory import exchanges_file
from dexorder import Client
from dexorder_common.model.realtime import ProvisionalReason
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite
from tests.smoke.test_realtime import stored, traded, unnamed

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]

SYMBOLS = ("X0001/USDT", "X0002/USDT", "X0003/USDT")
DELISTED = "X0004/USDT"
KILLED = ("ingestor", "relay", "spark", "gateway", "udsource", "kafka")
DEAF_SECONDS, KILL_AFTER_SECONDS, BEHIND_SECONDS = 50.0, 15.0, 40.0
LATE_NS = 5 * SECOND_NS
VALUES_SECONDS = 240.0
"""Longest time until values that only the socket has sent were compared, in three answers, and are in the table."""


def _rest(rule: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return a rule for REST's trades and its candles; without a path it would strike the candles alone."""
    return [{**rule, "path": f"/api/v3/{path}"} for path in ("aggTrades", "klines")]


def _name(symbol: str) -> str:
    return symbol.replace("/", "")


class Faults:
    """The exchange's faults, one after the other; those of the delisted market stay."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._lasting: list[Mapping[str, object]] = []

    def _set(self, *rules: Mapping[str, object], seconds: float) -> None:
        self._suite.exchange("/sim/faults", [*self._lasting, *rules])
        time.sleep(seconds)

    def deaf_and_behind(self, part: str) -> None:
        """Let sockets send nothing, not even pongs, beside a REST that is behind, and kill a part meanwhile."""
        began_s = time.monotonic()
        self._suite.exchange("/sim/sockets", {"kind": "ws_freeze", "hang_s": DEAF_SECONDS})
        self._set(*_rest({"kind": "behind", "lag_s": BEHIND_SECONDS}), seconds=KILL_AFTER_SECONDS)
        self._suite.kill_and_wait(part, 180)
        time.sleep(max(0.0, began_s + DEAF_SECONDS + 10.0 - time.monotonic()))
        self._set(seconds=10)

    def ids_begin_again(self, symbol: str) -> int:
        """Let a market's ids begin again while its socket is deaf, and kill the ingestor after it; return the time."""
        self._suite.exchange("/sim/sockets", {"kind": "ws_freeze", "hang_s": 10})
        self._set(seconds=3)
        found = self._suite.exchange("/sim/ids", {"symbol": _name(symbol)})
        self._set(seconds=12)
        self._suite.kill_and_wait("ingestor", 180)
        return int(found["time_ns"])

    def late(self) -> None:
        """Let REST show the trades of some seconds half a minute late, and the sockets never."""
        start_ns = time.time_ns()
        absent = _rest({"kind": "absent", "span": [start_ns, start_ns + LATE_NS]})
        self._set({"kind": "ws_drop", "every": 1}, *absent, seconds=LATE_NS / SECOND_NS)
        self._set(*absent, seconds=30)
        self._set(seconds=5)

    def corrected(self) -> None:
        """Let the sockets send other prices than REST."""
        self._set({"kind": "ws_edited", "every": 1}, seconds=8)
        self._set(seconds=0)

    def delist(self, symbol: str) -> int:
        """End a market for good; return the time."""
        name = _name(symbol)
        self._lasting = [*_rest({"kind": "delisted", "symbol": name}), {"kind": "ws_drop", "every": 1, "symbol": name}]
        self._set(seconds=0)
        return time.time_ns()

    def end(self) -> None:
        """End all."""
        self._suite.exchange("/sim/faults", [])


def _until_settled(client: Client, tickers: Iterable[str], time_ns: int, seconds: float) -> None:
    deadline, wanted = time.monotonic() + seconds, set(tickers)
    while True:
        jobs = client.list_realtime().jobs
        if wanted <= {job.ticker for job in jobs if job.series and job.series[0].settled_ns > time_ns}:
            return
        assert time.monotonic() < deadline, jobs
        time.sleep(0.5)


def _check_values(client: Client, suite: Suite, span: TimeRange) -> int:
    """Wait until the table has the exchange's trades and values; return their number."""
    deadline_s, total = time.monotonic() + VALUES_SECONDS, 0
    for symbol in SYMBOLS:
        expected = traded(suite, _name(symbol), span)
        total += len(expected)
        while (found := stored(client, f"{symbol}.SIM", span)) != expected and time.monotonic() < deadline_s:
            time.sleep(2)
        assert found == expected, suite.logs()
    return total


def _check_seam(client: Client, symbol: str, seam_ns: int) -> None:
    """The place where ids begin again is named, between the last old trade and the first new one."""
    (job,) = [each for each in client.list_realtime().jobs if each.ticker == f"{symbol}.SIM"]
    seams = [each.span for each in job.provisional if each.reason is ProvisionalReason.IDS_BEGAN_AGAIN]
    assert seams and all(each.start_ns <= seam_ns + SECOND_NS and seam_ns <= each.end_ns for each in seams), job


def _check_claims(suite: Suite, samples: Sequence[Sample], symbol: str, span: TimeRange) -> None:
    """At no moment did the table lack a trade of a span that was claimed then."""
    truth = traded(suite, _name(symbol), span)
    assert len(truth) > 50
    for sample in (each for each in samples if each.symbol == symbol):
        lacking = [each for each in truth if each[0] not in sample.stored]
        absent = [each for each in lacking if any(s.start_ns <= each[1] < s.end_ns for s in sample.claimed)]
        assert not absent, (symbol, absent)


def test_no_span_is_claimed_that_the_table_lacks_while_faults_last_and_parts_are_killed(tmp_path: Path) -> None:
    began_s, markets = time.monotonic(), (*SYMBOLS, DELISTED)
    options = ("--exchanges", exchanges_file(tmp_path))
    with (
        running_suite(tmp_path / "suite", *options, DEXORDER_SIM_MARKETS=str(len(markets))) as suite,
        Client(suite.relay, patience_seconds=120) as client,
    ):
        for symbol in markets:
            client.start_realtime(f"{symbol}.SIM", ["1m"])
        _until_settled(client, (f"{symbol}.SIM" for symbol in markets), time.time_ns(), 180)
        start_ns = time.time_ns()
        sampler, faults = Sampler(suite.relay, markets, start_ns), Faults(suite)
        sampler.start()
        for part in KILLED:
            faults.deaf_and_behind(part)
        seam_ns = faults.ids_begin_again(SYMBOLS[0])
        faults.late()
        delisted_ns = faults.delist(DELISTED)
        faults.corrected()
        span = TimeRange(start_ns, time.time_ns())
        time.sleep(60)
        assert [each for symbol in SYMBOLS for each in unnamed(client, suite, symbol, span)] == [], suite.logs()
        total = _check_values(client, suite, span)
        _check_seam(client, SYMBOLS[0], seam_ns)
        (job,) = [each for each in client.list_realtime().jobs if each.ticker == f"{DELISTED}.SIM"]
        assert "Invalid symbol" in job.error or "is unknown to" in job.error, job
        sampler.stop.set()
        sampler.join()
        struck = suite.exchange("/sim/stats")["faults"]
        assert struck.keys() >= {"behind", "absent", "delisted", "ws_drop", "ws_edited"}, struck
        faults.end()
        for symbol in markets:
            end_ns = delisted_ns if symbol == DELISTED else span.end_ns
            _check_claims(suite, sampler.samples, symbol, TimeRange(start_ns, end_ns))
    print_campaign(
        "Deaf sockets, REST behind, each part killed, ids that begin again, late and corrected trades, a delisting",
        ["trades", "samples", "absent of claimed spans"],
        [f"{total:,}", str(len(sampler.samples)), "0"],
        since_s=began_s,
    )
