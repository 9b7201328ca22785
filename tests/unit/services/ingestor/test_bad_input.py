"""Exchanges that do not return a full page of valid candles: each case ends in a defined way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dexorder_common.model.periods import MONTH_SECONDS, WEEK_SECONDS, open_times
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import parse_time
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.conftest import (
    MINUTE_NS,
    NOW_NS,
    Sim,
    StartWorld,
    World,
    exchanges_file,
    minutes,
    running_sim,
    running_world,
)
from tests.unit.services.ingestor.fakes import dispatch
from tests.unit.services.ingestor.test_ingestor import check_dispatch, rows, run_job

OK, ERROR = pb.DataResponse.OK, pb.DataResponse.ERROR
MISCHIEF = (
    *("http_502", "html", "empty", "cut_json", "hole", "drop_first", "drop_last"),
    *("duplicate_tail", "reversed", "null_fields", "slow_down"),
)
LAST_MINUTE_NS = NOW_NS // MINUTE_NS * MINUTE_NS


def missing_of(world: World, job_id: str, span: TimeRange) -> TimeRange:
    """Return the missing part after the pages; the ERROR must name it, and pages and part must fill the span."""
    pages = [r.control.span for r in world.gateway.pages(job_id)]
    assert [p.start_ns for p in pages] == [span.start_ns, *(p.end_ns for p in pages)][: len(pages)]
    missing = TimeRange(pages[-1].end_ns if pages else span.start_ns, span.end_ns)
    final = world.gateway.final(job_id).value
    assert final.status == (ERROR if missing else OK), final.error_message
    assert not missing or f"missing {missing}" in final.error_message
    return missing


@pytest.mark.parametrize("percent", [5, 20, 50])
async def test_faults_of_every_kind_at_once_lose_nothing_silently(sim: Sim, world_of: StartWorld, percent: int) -> None:
    span = minutes(0, 4000)
    truth = await sim.truth(span)
    each = 1 - (1 - percent / 100) ** (1 / len(MISCHIEF))
    await sim.faults(*({"kind": kind, "probability": each} for kind in MISCHIEF))
    async with world_of(attempts=12, page_candles=200, ban_seconds=0) as world:
        assert (await run_job(world, dispatch("j1", span))).success
        missing = missing_of(world, "j1", span)
        assert rows(world.gateway.pages("j1")) == {t: c for t, c in truth.items() if t < missing.start_ns}
        if percent < 50:
            assert not missing


@pytest.mark.parametrize(
    ("kind", "lost"), [("off_grid", 1), ("double", 0), ("double_other", 1), ("unreadable", 1), ("null_fields", 1)]
)
@pytest.mark.parametrize("span", [minutes(0, 3000), minutes(1800, 200)])
async def test_an_odd_row_that_is_always_there_costs_its_own_candle(
    sim: Sim, world_of: StartWorld, kind: str, lost: int, span: TimeRange
) -> None:
    truth = await sim.truth(span)
    odd = minutes(1700, 1)
    await sim.faults({"kind": kind, "span": [odd.start_ns, odd.end_ns]})
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", span))).success
        here = bool(lost) and span.overlaps(odd)
        pages = world.gateway.pages("j1")
        assert rows(pages) == {t: c for t, c in truth.items() if not (here and t == odd.start_ns)}
        assert all(c.HasField("quote_volume") and c.HasField("trade_count") for page in pages for c in page.candles)
        final = world.gateway.final("j1").value
        assert final.status == (ERROR if here else OK), final.error_message
        assert final.error_message.startswith(f"missing {odd}: ") or not here
        assert "; missing" not in final.error_message


async def test_market_with_holes_an_outage_a_listing_and_an_end(tmp_path: Path) -> None:
    span, chance = minutes(0, 4000), random.Random(1)
    there = [*(m for m in range(700, 1500) if chance.random() < 0.5), *range(2700, 3300)]
    lines = [f"{minutes(m, 0).start_ns // 1_000_000},2,3,1,2,{m}" for m in there]
    (tmp_path / "m.csv").write_text("\n".join(["timestamp,open,high,low,close,volume", *lines]))
    async with (
        running_sim(recorded=(f"{tmp_path / 'm.csv'}=RARE/USDT@1m",)) as sim,
        running_world(tmp_path, exchanges_file(tmp_path, sim.url)) as world,
    ):
        assert (await run_job(world, dispatch("j1", span, ticker="RARE/USDT.SIM"))).success
        check_dispatch(world, "j1", span)
        assert rows(world.gateway.pages("j1")) == {minutes(m, 0).start_ns: [2, 3, 1, 2, m] for m in there}


async def test_delisted_market_keeps_its_history(sim: Sim, world_of: StartWorld) -> None:
    span = minutes(0, 300)
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", span, ticker="LUNA/USDT.SIM"))).success
        check_dispatch(world, "j1", span)
        assert rows(world.gateway.pages("j1")) == await sim.truth(span, "LUNAUSDT")


async def test_range_in_the_future_is_all_missing(world_of: StartWorld) -> None:
    span = TimeRange(LAST_MINUTE_NS + 60 * MINUTE_NS, LAST_MINUTE_NS + 90 * MINUTE_NS)
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", span))).success
        assert missing_of(world, "j1", span) == span
        assert world.gateway.final("j1").value.error_message.endswith(": not closed yet")


async def test_open_candle_is_written_after_it_closed_with_its_final_values(sim: Sim, world_of: StartWorld) -> None:
    span = TimeRange(LAST_MINUTE_NS - 5 * MINUTE_NS, LAST_MINUTE_NS + MINUTE_NS)
    async with world_of(slots=1) as world:
        assert (await run_job(world, dispatch("early", span))).success
        assert missing_of(world, "early", span) == TimeRange(LAST_MINUTE_NS, span.end_ns)
        await sim.clock(now_ns=span.end_ns + 5_000_000_000)
        assert (await run_job(world, dispatch("late", span))).success
        check_dispatch(world, "late", span)
        assert rows(world.gateway.pages("late")) == await sim.truth(span)


async def test_candle_edited_after_it_closed_is_fetched_again_with_a_later_time(sim: Sim, world_of: StartWorld) -> None:
    span = minutes(0, 10)
    async with world_of(slots=1) as world:
        assert (await run_job(world, dispatch("j1", span))).success
        await sim.faults({"kind": "edited", "span": [minutes(5, 1).start_ns, minutes(5, 1).end_ns]})
        assert (await run_job(world, dispatch("j2", span))).success
        (before,), after = world.gateway.pages("j1"), world.gateway.pages("j2")
        old, new = rows([before]), rows(after)
        (changed,) = [t for t in old if old[t] != new[t]]
        assert new[changed] == [old[changed][0], old[changed][1], old[changed][2], old[changed][1], old[changed][4]]
        assert all(page.control.fetched_ns > before.control.fetched_ns for page in after), "which decides for Spark"


async def test_period_the_exchange_does_not_offer_is_named(tmp_path: Path, sim: Sim) -> None:
    span = minutes(0, 1)
    async with running_world(tmp_path, exchanges_file(tmp_path, sim.url, ccxt="coinbase")) as world:
        assert (await run_job(world, dispatch("j1", span, period_seconds=1))).success
        assert missing_of(world, "j1", span) == span
        assert "period_seconds 1 (1s) is not offered by SIM; it has 1m, 5m" in (
            world.gateway.final("j1").value.error_message
        )


CALENDAR = [(86_400, "1d"), (WEEK_SECONDS, "1w"), (MONTH_SECONDS, "1M")]


@pytest.mark.parametrize(("period_seconds", "interval"), CALENDAR)
async def test_days_weeks_and_months_open_where_the_exchange_opens_them(
    sim: Sim, world_of: StartWorld, period_seconds: int, interval: str
) -> None:
    starts = {"1w": ("2019-12-30", "2021-02-01")}  # the others: leap day, both changes of summer time
    first, last = starts.get(interval, ("2020-01-01", "2021-02-01"))
    span = TimeRange(parse_time(first), parse_time(last))
    async with world_of() as world:
        assert (await run_job(world, dispatch("j1", span, period_seconds=period_seconds))).success
        found = rows(world.gateway.pages("j1"))
        assert list(found) == list(open_times(span, period_seconds))
        assert found == await sim.truth(span, interval=interval)
