"""Parallel backfills during a campaign, and the checks of all of them afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass

import grpc
import pyarrow as pa

from dexorder_common.model.history import RequestState, RequestStatus
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from tests.nightly.runner import Loop
from tests.rig.oracle import assert_equal, minutes, oracle
from tests.rig.processes import until
from tests.rig.suite import Suite

FIRST_MINUTE = -2_900_000
SYMBOLS = ("BTC/USDT", "ETH/USDT", "LTC/USDT", "BNB/USDT", "XRP/USDT", "ADA/USDT", "TRX/USDT", "ETH/BTC", "ETH/USD")
"""Each was listed before FIRST_MINUTE."""
LAST_MINUTE = 1_100_000
UNUSED_MINUTE = -500_000
"""Minute from which on no test of the running smoke suite requests candles of these markets."""


@dataclass(frozen=True)
class Backfill:
    """One request of a campaign."""

    request_id: str
    symbol: str
    span: TimeRange


class Backfills(Loop):
    """Keeps ``at_once`` requests fetching, each for the ``candles`` after the previous one.

    A request counts as fetching until all its pages are in Kafka, so that the slots are busy also while Spark is down.
    """

    PAUSE_S = 0.2

    def __init__(
        self, suite: Suite, client_id: str, *, candles: int, at_once: int = 2, symbols: tuple[str, ...] = SYMBOLS
    ) -> None:
        super().__init__()
        self.sent: list[Backfill] = []
        self.client_id = client_id
        self._suite = suite
        self._candles = candles
        self._at_once = at_once
        self._symbols = symbols
        self._fetching: list[Backfill] = []

    def step(self) -> None:
        self.pause()
        self._fetching = [each for each in self._fetching if not self._fetched(each)]
        while len(self._fetching) < self._at_once and not self._stopping.is_set():
            self._fetching.append(self._submit())

    def assert_all_ended_well(self, announced: dict[str, set[str]] | None = None, seconds: float = 600) -> int:
        """Check, once stopped, that every request is OK and the table equals the oracle; return the number of rows.

        Args:
            announced: Statuses that a listener received for each request.
            seconds: Time for the requests that are not finished.
        """
        suite = self._suite
        for each in self.sent:
            record = suite.ended(each.request_id, seconds)
            assert (record.status, record.row_count) == (RequestStatus.OK, self._candles), record
        if announced is not None:
            until(lambda: len(announced) >= len(self.sent), 60, lambda: str(announced))
            assert announced == {each.request_id: {"OK"} for each in self.sent}
        for symbol in self._symbols:
            spans = [each.span for each in self.sent if each.symbol == symbol]
            if spans:  # neighbours, so this also finds rows that nobody asked for
                whole = TimeRange(spans[0].start_ns, spans[-1].end_ns)
                expected = pa.concat_tables([oracle(symbol, "1m", span) for span in spans])
                assert_equal(suite.rows(f"{symbol}.SIM", 60, whole), expected)
        return len(self.sent) * self._candles

    def _fetched(self, each: Backfill) -> bool:
        record = self._suite.record(each.request_id)
        if record is None:
            return False
        progress = record.progress
        return record.state is RequestState.FINISHED or 0 < progress.expected_periods == progress.settled_periods

    def _submit(self) -> Backfill:
        number, room = len(self.sent), (LAST_MINUTE - FIRST_MINUTE) // self._candles
        symbol = self._symbols[number // room]
        span = minutes(FIRST_MINUTE + number % room * self._candles, self._candles)
        each = Backfill(f"{self.client_id}-{number}", symbol, span)
        submit(self._suite, historical(each.request_id, symbol, span, self.client_id))
        self.sent.append(each)
        return each


def historical(
    request_id: str, symbol: str, span: TimeRange, client_id: str | None = None, *, period_seconds: int = 60
) -> ingest_pb2.SubmitHistoricalRequest:
    """Return a request for candles, by default of a minute."""
    return ingest_pb2.SubmitHistoricalRequest(
        request_id=request_id,
        ticker=f"{symbol}.SIM",
        start_time=span.start_ns,
        end_time=span.end_ns,
        period_seconds=period_seconds,
        client_id=client_id,
    )


def submit(suite: Suite, request: ingest_pb2.SubmitHistoricalRequest, seconds: float = 120) -> None:
    """Submit a request until it is answered; a relay that restarts meanwhile may know it already."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with open_sync_channel(suite.relay) as channel:
                answer = BlockingRelayStubs(channel).history.SubmitHistorical(request, timeout=10).answer
            assert answer.status != ingest_pb2.SubmitResponse.INVALID, answer.error_message
            return
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
