"""Absences of a thin market, judged by coarser candles of a later time: the rule, and the relay's part."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.tables import OHLC
from dexorder_common.model.time_range import TimeRange, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_relay.verification import rechecker
from dexorder_relay.verification.rechecker import judge
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, Suite, at, candle, final_of, minute, page, ranges, suite

MINUTES, CELL = 120, 5
MINUTE_NS = 60 * SECOND_NS
HOUR_LATER_NS = at(MINUTES) + 3_600 * SECOND_NS


def spans(minutes: Sequence[int]) -> list[TimeRange]:
    return merge(TimeRange(at(m), at(m + 1)) for m in minutes)


def within(found: Sequence[TimeRange]) -> set[int]:
    return {m for m in range(-CELL, MINUTES + CELL) if any(e.start_ns <= at(m) < e.end_ns for e in found)}


@given(
    seed=st.integers(0, 2**32),
    density=st.sampled_from([0.05, 0.3, 0.7]),
    hidden=st.tuples(st.integers(0, MINUTES - 1), st.integers(1, 40)),
    compared=st.tuples(st.integers(0, 10), st.integers(14, 24)),
    known=st.tuples(st.integers(0, 20), st.integers(90, MINUTES)),
    minutes_later=st.integers(0, 120),
)
def test_a_candle_that_was_hidden_at_the_first_look_is_never_final(
    seed: int,
    density: float,
    hidden: tuple[int, int],
    compared: tuple[int, int],
    known: tuple[int, int],
    minutes_later: int,
) -> None:
    """The cells are whole again at the second look; any part may be compared, and any part may be provisional."""
    dice = random.Random(seed)
    market = {m: dice.random() for m in range(MINUTES) if dice.random() < density}
    rows = {m: volume for m, volume in market.items() if not hidden[0] <= m < hidden[0] + hidden[1]}
    provisional = [TimeRange(at(known[0]), at(known[1]))]
    empty = subtract(provisional, spans(list(rows)))
    cells = [TimeRange(at(n * CELL), at((n + 1) * CELL)) for n in range(*compared)]
    differing = [c for c in cells if _volumes(rows, c) != _volumes(market, c)]
    now_ns = HOUR_LATER_NS + (minutes_later - 120) * MINUTE_NS
    doubtful, repeated, final = judge(provisional, empty, merge(cells), merge(differing), CELL * 60, now_ns=now_ns)
    lost = {m for m in market.keys() - rows.keys() if known[0] <= m < known[1]}
    assert lost <= within(doubtful)
    assert not within(doubtful) & within(final) and not within(doubtful) & within(repeated)
    assert within(provisional) <= within(doubtful) | within(repeated) | within(final), "each absence makes progress"
    young = {m for m in within(empty) if now_ns - at(m + 1) < 3_600 * SECOND_NS - CELL * MINUTE_NS}
    assert not young & within(final)
    bare = {m for m in within(empty) for n in [m // CELL * CELL] if within(empty) >= set(range(n, n + CELL))}
    assert not bare & within(final)
    if not differing and within(merge(cells)) >= within(empty) and minutes_later == 120 and not bare:
        assert not doubtful


def _volumes(rows: Mapping[int, float], cell: TimeRange) -> list[float]:
    return [rows[m] for m in range(minute(cell.start_ns), minute(cell.end_ns)) if m in rows]


# ---- the relay ------------------------------------------------------------------------------------------------------

TRADED = [m for m in range(MINUTES) if m % 3 == 0]
HIDDEN = 60


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecker, "INTERVAL_SECONDS", 0.05)


async def fetch_a_thin_market(s: Suite, rows: Sequence[int]) -> Any:
    """Have two hours fetched by a client, of which two of three minutes are absent; return the ingestor."""
    offer = history_pb.CandleOffer(period_seconds=[60, 300], call_candles=100, volume_tolerance=1e-9)
    markets = [history_pb.Instrument(ticker=TICKER, active=True)]
    await s.ingestors.ReportInstruments(
        ipb.ReportInstrumentsRequest(exchange="SIM", instruments=markets, fetched_ns=1, candles=offer)
    )
    ingestor = await s.offering(4)
    await s.queued("first", 0, MINUTES, client_id="me")
    dispatch = await ingestor.take()
    snapshot_id = s.pipeline.upsert(rows)
    holes = [(minute(e.start_ns), minute(e.end_ns)) for e in subtract([TimeRange(at(0), at(MINUTES))], spans(rows))]
    thin = page(dispatch.job_id, 0, MINUTES, provisional=holes)
    await s.pipeline.report(snapshot_id=snapshot_id, pages=[thin], finals=[final_of(dispatch.job_id)])
    return ingestor


def cells_of(s: Suite, minutes: Sequence[int]) -> pa.Table:
    """Return the 5m candles of these minutes, added up here."""
    found = []
    for first in range(0, MINUTES, CELL):
        inside = [candle(m) for m in minutes if first <= m < first + CELL]
        values = {
            "open": inside[0]["open"],
            "high": max(c["high"] for c in inside),
            "low": min(c["low"] for c in inside),
            "close": inside[-1]["close"],
            "volume": fsum(c["volume"] for c in inside),
        }
        found.append(s.pipeline.rows([first], period_seconds=CELL * 60, **values))
    return pa.concat_tables(found)


async def answer_with_cells(s: Suite, ingestor: Any, minutes: Sequence[int]) -> None:
    """Answer the relay's request for all 5m candles."""
    dispatch = await ingestor.take()
    asked = dispatch.historical
    assert dispatch.request_id.startswith("cells-") and asked.period_seconds == CELL * 60
    assert (minute(asked.start_time), minute(asked.end_time)) == (0, MINUTES)
    OHLC.load_or_create(s.pipeline.catalog).append(cells_of(s, minutes))
    cells = page(dispatch.job_id, 0, MINUTES)
    cells.series.period_seconds = CELL * 60
    await s.pipeline.report(snapshot_id=s.pipeline.snapshot_id(), pages=[cells], finals=[final_of(dispatch.job_id)])
    await s.finished(dispatch.request_id)


async def provisional_minutes(s: Suite) -> set[int]:
    found = set()
    async for answer in s.relay.coverage.StreamCoverage(
        coverage_pb.StreamCoverageRequest(series=series(ticker=TICKER, period_seconds=60))
    ):
        for each in answer.ranges:
            if each.provisional:
                found |= set(range(minute(each.start_ns), minute(each.end_ns)))
    return found


async def until_nothing_is_provisional(s: Suite) -> None:
    while await provisional_minutes(s):
        pass


async def test_a_thin_market_is_final_after_one_look_at_its_coarser_candles(tmp_path: Path) -> None:
    async with suite(tmp_path, recheck_after_seconds=(0.5, 600.0)) as s:
        ingestor = await fetch_a_thin_market(s, TRADED)
        told = await s.notification("RESPONSE:me")
        assert list(told.provisional) == ranges([(1, MINUTES)]), "80 absences are one range"
        assert await provisional_minutes(s) == set(range(MINUTES)) - set(TRADED)
        await answer_with_cells(s, ingestor, TRADED)
        await until_nothing_is_provisional(s)
        record = await s.record("first")
        assert (record.status, record.row_count) == (ingest.HistoryReadyNotification.OK, len(TRADED))
        assert not [e async for e in _requests(s) if e.startswith("recheck-")], "no candle was fetched again"


async def test_a_candle_that_the_coarser_ones_show_is_fetched_and_announced(tmp_path: Path) -> None:
    async with suite(tmp_path, recheck_after_seconds=(0.5, 600.0)) as s:
        shown = [m for m in TRADED if m != HIDDEN]
        ingestor = await fetch_a_thin_market(s, shown)
        told = await s.notification("RESPONSE:me")
        await answer_with_cells(s, ingestor, TRADED)
        dispatch = await ingestor.take()
        asked = dispatch.historical
        assert dispatch.request_id.startswith("recheck-") and asked.period_seconds == 60
        assert (minute(asked.start_time), minute(asked.end_time)) == (HIDDEN, HIDDEN + CELL)
        snapshot_id = s.pipeline.upsert(TRADED)
        holes = [(m, m + 1) for m in range(HIDDEN, HIDDEN + CELL) if m not in TRADED]
        found = page(dispatch.job_id, HIDDEN, HIDDEN + CELL, empty=holes)
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[found], finals=[final_of(dispatch.job_id)])
        for topic, after in ((f"REVISED:{TICKER}", None), ("RESPONSE:me", told.cursor)):
            news = await s.notification(topic, after)
            assert list(news.revised) == ranges([(HIDDEN, HIDDEN + 1)])
        await until_nothing_is_provisional(s)


async def _requests(s: Suite) -> Any:
    for record in (await s.relay.history.ListRequests(history_pb.ListRequestsRequest())).records:
        yield record.request.request_id
