"""Random damage to a real table, then one repair: the table equals the exchange's history, and a request says so."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from tests.examples import first_in_gate
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    NOT_FOUND,
    OK,
    TICKER,
    Ingestor,
    Suite,
    at,
    candle,
    page,
    suite,
)
from tests.unit.services.relay.requests.test_outcome import write_off_grid
from tests.unit.services.relay.verification.test_verification import verify

MINUTES = 40


def damage(s: Suite, pick: random.Random, holes: list[int]) -> None:
    """Do one to six things to the table that nobody may do."""
    rows = [minute for minute in range(MINUTES) if minute not in holes]
    for kind in pick.choices(["double", "differ", "delete", "unexpected", "off grid"], k=pick.randint(1, 6)):
        minute = pick.choice(rows)
        if kind == "double":
            s.pipeline.write([minute])
        elif kind == "differ":
            s.pipeline.write([minute], close=0.5)
        elif kind == "delete":
            table = s.pipeline.catalog.load_table(OHLC.name)
            where = rows_in(Series(TICKER, 60), TimeRange(at(minute), at(minute + pick.randint(1, 5))))
            replace_rows(table, where, table.schema().as_arrow().empty_table(), {})
        elif kind == "unexpected":
            s.pipeline.write([pick.choice(holes)])
        else:
            write_off_grid(s, minute)


async def fetch_forever(s: Suite, ingestor: Ingestor, holes: list[int]) -> None:
    await ingestor.offer()
    while True:
        await ingestor.work(s.pipeline, dispatches=1, holes=holes)


@pytest.mark.parametrize("seed", first_in_gate(range(4), 2))
async def test_a_repair_restores_the_history_whatever_was_done_to_the_table(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    holes = sorted(pick.sample(range(MINUTES), 8))
    async with suite(tmp_path) as s:
        there = [minute for minute in range(MINUTES) if minute not in holes]
        pages = [page(EARLIER, 0, MINUTES, empty=[(hole, hole + 1) for hole in holes])]
        await s.pipeline.report(snapshot_id=s.pipeline.write(there), pages=pages)
        damage(s, pick, holes)
        fetching = asyncio.create_task(fetch_forever(s, s.ingestor(), holes))
        if pick.random() < 0.5:
            await s.queued("before", 0, MINUTES)
            assert (await s.finished("before")).status == ERROR, "damage is never OK"
        _, found = await verify(s, repair=True)
        assert found.removed_rows == found.surplus_rows + found.off_grid_rows + found.unexpected_periods
        for request_id in found.repair_request_ids:
            assert (await s.finished(request_id)).status in (OK, NOT_FOUND)
        await s.queued("after", 0, MINUTES)
        record = await s.finished("after")
        assert (record.status, record.row_count, record.empty_periods) == (OK, len(there), len(holes))
        _, again = await verify(s)
        assert (again.rows, again.lost_periods, again.row_periods) == (len(there), 0, len(there))
        rows = s.pipeline.catalog.load_table(OHLC.name).scan(row_filter=f"ticker == '{TICKER}'").to_arrow()
        stored = {each["open_time"].minute: each["close"] for each in rows.to_pylist()}
        assert stored == {minute: candle(minute)["close"] for minute in there}
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
