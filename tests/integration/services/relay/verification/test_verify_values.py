"""Verification against the exchange: relay, ingestor and unmodified ccxt, with the simulated exchange."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dexorder_common.clock import SystemClock
from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.coverage import VerificationResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.unit.services.ingestor.whole import Whole, by_open, whole
from tests.unit.services.relay.harness import at, span

pytestmark = pytest.mark.smoke

TICKER = "BTC/USDT.SIM"
NOW = 100_000
"""Minute of the exchange's clock."""


def settings() -> dict[str, Any]:
    return {"now_ns": at(NOW) + 5 * SECOND_NS}


class AtNow(SystemClock):
    """The clock of a relay that agrees with the exchange's."""

    def wall_ns(self) -> int:
        return at(NOW) + 6 * SECOND_NS


async def table_of(w: Whole, part: TimeRange) -> dict[int, list[float]]:
    return by_open(await asyncio.to_thread(_rows, w, part))


def _rows(w: Whole, part: TimeRange) -> pa.Table:
    table = w.suite.pipeline.catalog.load_table(OHLC.name)
    return table.scan(rows_in(Series(TICKER, 60), part)).to_arrow()


def change(w: Whole, minute: int, name: str, value: float) -> None:
    """Change a value of a row by hand."""
    table = w.suite.pipeline.catalog.load_table(OHLC.name)
    where = rows_in(Series(TICKER, 60), span(minute, minute + 1))
    row = table.scan(where).to_arrow()
    column = pa.array([value], row.schema.field(name).type)
    replace_rows(table, where, row.set_column(row.schema.get_field_index(name), name, column), {})


async def verify(w: Whole, start: int, end: int, *, repair: bool = False) -> VerificationResult:
    part = span(start, end)
    async with asyncio.timeout(120):
        return await w.client.verify(TICKER, "1m", part.start_ns, part.end_ns, repair=repair)


async def test_a_value_changed_by_hand_is_found_and_repaired(tmp_path: Path) -> None:
    start, end = 607, 3_665
    async with whole(tmp_path, sim=settings(), upsert=True) as w:
        await w.ask("fetched", TICKER, 60, span(start, end))
        truth = await w.sim.truth(span(start, end))
        found = await verify(w, start, end)
        assert found.well() and found.values
        assert (found.values.differing, found.values.cell_seconds) == ((), (3_600, 180))
        edges = [span(start, start + 2), span(end - 2, end)]
        assert list(found.values.uncompared) == edges, "parts of the smallest cells"
        assert found.values.compared_periods + found.values.uncompared_periods == end - start
        assert 0 < found.values.calls < 30, "three requests for cells"
        assert await table_of(w, span(start, end)) == truth

        close = truth[at(1_234)][3]
        await asyncio.to_thread(change, w, 1_259, "close", close * 1.01)
        await asyncio.to_thread(change, w, 611, "volume", 1e9)
        found = await verify(w, start, end)
        assert found.values and not found.well()
        assert [each.span for each in found.values.differing] == [span(609, 612), span(1_200, 1_260)]
        volume, other = found.values.differing
        assert volume.table and volume.exchange and volume.table.volume > 1e9 > volume.exchange.volume
        assert other.table and other.exchange and other.table.close == close * 1.01
        assert await table_of(w, span(start, end)) != truth, "nothing is changed without repair"

        found = await verify(w, start, end, repair=True)
        ended = [(await w.client.wait(each)).record for each in found.repairs]
        assert found.well(ended) and found.values and found.values_after_repair
        assert (found.values.differing_periods, found.values.repaired_periods) == (63, 63)
        assert found.values_after_repair.compared_periods == 63
        assert not found.values_after_repair.differing
        assert await table_of(w, span(start, end)) == truth
        again = await verify(w, start, end)
        assert again.well() and again.values and not again.values.differing


async def test_candle_that_the_exchange_no_longer_has_is_removed_by_one_repair(tmp_path: Path) -> None:
    start, end, gone = 600, 4_200, 1_259
    async with whole(tmp_path, sim=settings(), upsert=True) as w:
        await w.ask("fetched", TICKER, 60, span(start, end))
        truth = await w.sim.truth(span(start, end))
        row = await asyncio.to_thread(_rows, w, span(gone, gone + 1))
        withdrawn = span(gone, gone + 1)
        await w.sim.faults({"kind": "absent", "span": [withdrawn.start_ns, withdrawn.end_ns], "coarser": "computed"})
        del truth[at(gone)]
        for wrong_rows in (0, 1):  # of the first one, coverage says that it is there
            found = await verify(w, start, end, repair=True)
            ended = [(await w.client.wait(each)).record for each in found.repairs]
            assert found.well(ended), [each.error_message for each in ended]
            assert found.wrong_rows == found.removed_rows == wrong_rows
            assert await table_of(w, span(start, end)) == truth
            again = await verify(w, start, end)
            assert again.well() and again.values and not again.values.differing
            await asyncio.to_thread(put_by_hand, w, row)


def put_by_hand(w: Whole, row: pa.Table) -> None:
    """Append a row that no page brought."""
    w.suite.pipeline.catalog.load_table(OHLC.name).append(row)


async def test_exchange_that_contradicts_itself_is_told(tmp_path: Path) -> None:
    """Its minute is not what it was when its hour was computed; the table has what it answers now, in the end."""
    start, end = 600, 4_200
    async with whole(tmp_path, sim=settings(), upsert=True) as w:
        await w.ask("fetched", TICKER, 60, span(start, end))
        minute = span(1_259, 1_260)
        await w.sim.faults({"kind": "edited", "span": [minute.start_ns, minute.end_ns]})
        found = await verify(w, start, end)
        assert found.well(), "the rows are those of which the hour was computed"
        await asyncio.to_thread(change, w, 1_250, "volume", 1e9)
        found = await verify(w, start, end, repair=True)
        ended = [(await w.client.wait(each)).record for each in found.repairs]
        assert found.values_after_repair
        assert [each.span for each in found.values_after_repair.differing] == [span(1_200, 1_260)]
        assert found.well(ended)
        (still,) = found.values_after_repair.differing
        assert still.table and still.table.volume < 1e9, "it was fetched again"


async def test_young_cells_are_not_compared(tmp_path: Path) -> None:
    start = NOW - 200
    async with whole(tmp_path, sim=settings(), relay={"clock": AtNow()}) as w:
        await w.ask("fetched", TICKER, 60, span(start, NOW))
        await asyncio.to_thread(change, w, NOW - 1, "close", 1e9)
        await asyncio.to_thread(change, w, NOW - 12, "close", 1e9)
        found = await verify(w, start, NOW)
        assert found.well() and found.values and not found.values.errors
        young = found.values.uncompared[-1]
        assert young.start_ns <= at(NOW - 12) and young.end_ns == at(NOW)
        assert found.values.compared_periods > 150


async def test_cells_that_can_not_be_fetched_are_no_agreement(tmp_path: Path) -> None:
    start, end = 600, 1_800
    async with whole(tmp_path, sim=settings()) as w:
        await w.ask("fetched", TICKER, 60, span(start, end))
        await w.sim.faults({"kind": "http_403"})
        found = await verify(w, start, end)
        assert not found.well() and found.values
        assert (found.values.compared_periods, found.values.uncompared_periods) == (0, 1_200)
        assert "403 Forbidden" in found.values.errors[0] and found.values.errors[0].startswith("3m candles: ")
        await w.sim.faults()
        assert (await verify(w, start, end)).well()


async def test_market_with_holes_agrees(tmp_path: Path) -> None:
    """It is traded in two of three hours, between its listing and its delisting."""
    traded = [m for m in range(6_000, 7_800) if m // 60 % 3]
    lines = ["timestamp,open,high,low,close,volume", *(f"{at(m) // 1_000_000},2,3,1,2,{m}" for m in traded)]
    (tmp_path / "thin.csv").write_text("\n".join(lines))
    sim = {**settings(), "recorded": (f"{tmp_path / 'thin.csv'}=OLD/USDT@1m",)}
    ticker, start, end = "OLD/USDT.SIM", 5_400, 9_000
    async with whole(tmp_path, sim=sim) as w:
        ended = await w.ask("fetched", ticker, 60, span(start, end))
        assert ended.record.row_count == len(traded)
        part = span(start, end)
        found = await w.client.verify(ticker, "1m", part.start_ns, part.end_ns)
        assert found.well() and found.values
        assert (found.values.compared_periods, found.values.differing) == (end - start, ())
