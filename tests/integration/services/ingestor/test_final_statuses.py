"""End of requests, from the client's call to the rows it reads: the table of docs/completeness.md, case by case."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dexorder.errors import RequestRefused
from dexorder_common.model.history import HistoryRequest, RequestStatus
from dexorder_common.model.periods import MONTH_SECONDS, WEEK_SECONDS, floor_to_grid
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS, iso, parse_time
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.whole import Whole, whole
from tests.unit.services.relay.harness import MINUTE_NS, at

pytestmark = pytest.mark.smoke

LIVE, OLD, NEVER = "BTC/USDT.SIM", "OLD/USDT.SIM", "NEVER/USDT.SIM"
NOW = 1_000_000
"""Minute of the exchange's clock, which stands 5 s behind its start: the candle that opens then is still running."""
CLOCK_NS = at(NOW) + 5 * SECOND_NS
LISTED, DELISTED = 10_000, 10_300
"""Minutes in which OLD was traded."""
OK, NOT_FOUND, ERROR = RequestStatus.OK, RequestStatus.NOT_FOUND, RequestStatus.ERROR


def span(start: int, end: int) -> TimeRange:
    return TimeRange(at(start), at(end))


def recorded(folder: Path, symbol: str, minutes: range, *, impossible: int | None = None) -> str:
    """A market whose candle of minute m has volume m; the impossible one has its low above its high."""
    lines = ["timestamp,open,high,low,close,volume"]
    lines += [f"{at(m) // 1_000_000},2,3,{9 if m == impossible else 1},2,{m}" for m in minutes]
    path = folder / f"{symbol.replace('/', '_')}.csv"
    path.write_text("\n".join(lines))
    return f"{path}={symbol}@1m"


def settings(folder: Path) -> dict[str, Any]:
    return {"now_ns": CLOCK_NS, "recorded": (recorded(folder, "OLD/USDT", range(LISTED, DELISTED)),)}


@dataclass(frozen=True)
class Case:
    """A request for minutes [start, end), and how it must end."""

    name: str
    ticker: str
    start: int
    end: int
    status: RequestStatus
    rows: int
    empty: int = 0
    missing: tuple[int, int] | None = None
    limit: int | None = None
    answered_end: int | None = None


CASES = [
    Case("closed candles", LIVE, 0, 300, OK, 300),
    Case("up to the last closed candle", LIVE, NOW - 10, NOW, OK, 10),
    Case("into the running candle", LIVE, NOW - 30, NOW + 1, ERROR, 30, missing=(NOW, NOW + 1)),
    Case("past now", LIVE, NOW - 60, NOW + 200, ERROR, 60, missing=(NOW, NOW + 200)),
    Case("all of it after now", LIVE, NOW + 100, NOW + 110, ERROR, 0, missing=(NOW + 100, NOW + 110)),
    Case("before the listing", OLD, LISTED - 500, LISTED - 200, NOT_FOUND, 0, empty=300),
    Case("across the listing", OLD, LISTED - 100, LISTED + 50, OK, 50, empty=100),
    Case("after the delisting", OLD, DELISTED + 150, DELISTED + 400, NOT_FOUND, 0, empty=250),
    Case("across the delisting", OLD, DELISTED - 50, DELISTED + 100, OK, 50, empty=100),
    Case("the whole life", OLD, LISTED - 100, DELISTED + 100, OK, 300, empty=200),
    Case("limit", LIVE, 1_000, 1_300, OK, 7, limit=7, answered_end=1_007),
    Case("limit over the range", LIVE, 2_000, 2_300, OK, 300, limit=1_000),
    Case("limit counts candles, not periods", OLD, LISTED - 90, DELISTED, OK, 5, 90, limit=5, answered_end=LISTED + 5),
    Case("limit over what there is", OLD, DELISTED - 20, DELISTED + 90, OK, 20, 90, limit=21),
    Case("limit reached before now", LIVE, NOW - 90, NOW + 10, OK, 15, limit=15, answered_end=NOW - 75),
    Case("limit not reached by now", LIVE, NOW - 5, NOW + 10, ERROR, 5, missing=(NOW, NOW + 1), limit=6),
    Case("limit where nothing was", OLD, LISTED - 900, LISTED - 800, NOT_FOUND, 0, 100, limit=3),
]


async def test_each_range_has_its_one_final_status(tmp_path: Path) -> None:
    async with whole(tmp_path, sim=settings(tmp_path)) as w:
        for case in CASES:
            await check(w, case)


async def check(w: Whole, case: Case) -> None:
    ended = await w.ask(case.name, case.ticker, 60, span(case.start, case.end), limit=case.limit)
    record = ended.record
    missing: tuple[TimeRange, ...] = () if case.missing is None else (span(*case.missing),)
    assert (record.status, record.row_count, record.missing) == (case.status, case.rows, missing), (case, record)
    assert (ended.notification.status, ended.notification.row_count) == (case.status, case.rows), case
    if case.missing:
        assert f"missing {missing[0]}: not closed yet" in record.error_message, case
        return
    assert record.empty_periods == case.empty, case
    if case.status is OK:
        assert record.answered_end_ns == at(case.end if case.answered_end is None else case.answered_end), case
        found = await w.rows(ended)
        symbol = case.ticker.partition("/")[0] + "USDT"
        wanted = await w.sim.truth(span(case.start, case.end), symbol)
        assert found == dict(list(wanted.items())[: case.limit]), case
        assert len(found) == case.rows


REFUSED: list[tuple[dict[str, int], str]] = [
    ({"start_time": at(10), "end_time": at(9)}, f"end_time {at(9)} is not after start_time {at(10)}"),
    ({"start_time": at(9), "end_time": at(9)}, f"end_time {at(9)} is not after start_time {at(9)}"),
    ({"start_time": at(0) + 1}, f"start_time {at(0) + 1} is not on the 1m grid; the open before it is {at(0)}"),
    ({"end_time": 2**63 // MINUTE_NS * MINUTE_NS + MINUTE_NS}, f"is outside [0, {MAX_TIME_NS}] nanoseconds"),
    ({"end_time": 2**64 - 1}, f"end_time {2**64 - 1} is outside [0, {MAX_TIME_NS}] nanoseconds"),
    ({"period_seconds": 120}, "period_seconds 120 is not one of [1, 60, 180,"),
    ({"period_seconds": 3 * 86_400}, "period_seconds 259200 is not one of"),
    ({"limit": 0}, "limit 0 requests no candle; omit it for the whole range"),
]


async def test_impossible_requests_are_refused_with_field_and_value_and_no_query(tmp_path: Path) -> None:
    async with whole(tmp_path, sim=settings(tmp_path)) as w:
        for fields, text in REFUSED:
            values = {"start_time": at(0), "end_time": at(10), "period_seconds": 60, **fields}
            answer = (
                await w.suite.relay.history.SubmitHistorical(
                    pb.SubmitHistoricalRequest(request_id="r", ticker=LIVE, **values)  # type: ignore[arg-type]
                )
            ).answer
            assert answer.status == pb.SubmitResponse.INVALID, fields
            assert text in answer.error_message, fields
        assert "/api/v3/klines" not in (await w.sim.stats())["requests"]


async def test_range_at_the_end_of_time_is_not_closed_yet(tmp_path: Path) -> None:
    """The last candles that fit 64 bits of nanoseconds: no overflow anywhere."""
    async with whole(tmp_path, sim=settings(tmp_path)) as w:
        for name, period in (("1m", 60), ("1w", WEEK_SECONDS), ("1M", MONTH_SECONDS)):
            last_ns = floor_to_grid(MAX_TIME_NS, period)
            far = TimeRange(floor_to_grid(last_ns - 70 * 86_400 * SECOND_NS, period), last_ns)
            record = (await w.ask(name, LIVE, period, far)).record
            assert (record.status, record.missing) == (ERROR, (far,))
            assert ": not closed yet" in record.error_message


async def test_verified_part_of_a_failed_request_is_readable_and_not_fetched_again(tmp_path: Path) -> None:
    one_by_one = {"slots": 1}
    async with whole(tmp_path, sim=settings(tmp_path), relay={"job_periods": 400}, venue=one_by_one, attempts=2) as w:
        asked = span(0, 1_000)
        await w.sim.faults({"kind": "http_500", "after": 13})
        record = (await w.ask("first", LIVE, 60, asked)).record
        there = w.fetched()
        assert record.status is ERROR
        assert there, "some of it was verified"
        assert record.row_count == sum((t.end_ns - t.start_ns) // MINUTE_NS for t in there)
        assert list(record.missing) == without(asked, there), "what is missing is what no page settled"
        for gap in record.missing:
            assert f"missing {gap}" in record.error_message
        calls = (await w.sim.stats())["requests"]["/api/v3/klines"]
        part = await w.ask("part", LIVE, 60, there[0])
        assert (await w.sim.stats())["requests"]["/api/v3/klines"] == calls, "it was answered from the table"
        await w.sim.faults()
        assert part.record.status is OK
        assert await w.rows(part) == await w.sim.truth(there[0])
        again = await w.ask("again", LIVE, 60, asked)
        assert again.record.status is OK
        assert await w.rows(again) == await w.sim.truth(asked)
        fetched = w.fetched()
        assert without(asked, fetched) == []
        assert sum(t.end_ns - t.start_ns for t in fetched) == asked.end_ns - asked.start_ns, "nothing was fetched twice"


def without(asked: TimeRange, parts: list[TimeRange]) -> list[TimeRange]:
    """Subtract ranges minute by minute, independent of the code under test."""
    there = {t for part in parts for t in range(part.start_ns, part.end_ns, MINUTE_NS)}
    gaps: list[TimeRange] = []
    for open_ns in range(asked.start_ns, asked.end_ns, MINUTE_NS):
        if open_ns in there:
            continue
        if gaps and gaps[-1].end_ns == open_ns:
            gaps[-1] = TimeRange(gaps[-1].start_ns, open_ns + MINUTE_NS)
        else:
            gaps.append(TimeRange(open_ns, open_ns + MINUTE_NS))
    return gaps


async def test_impossible_candle_alone_is_missing_and_its_row_is_in_the_message(tmp_path: Path) -> None:
    bad = LISTED + 140
    sim = {"now_ns": CLOCK_NS, "recorded": (recorded(tmp_path, "OLD/USDT", range(LISTED, DELISTED), impossible=bad),)}
    async with whole(tmp_path, sim=sim) as w:
        record = (await w.ask("r", OLD, 60, span(LISTED, DELISTED))).record
        assert (record.status, record.row_count, record.missing) == (ERROR, 299, (span(bad, bad + 1),))
        row = f"[{at(bad) // 1_000_000}, '2.0', '3.0', '9.0', '2.0', '{bad}.0', "
        assert row in record.error_message
        assert f"] at {iso(at(bad))} breaks low" in record.error_message
        for n, part in enumerate((span(LISTED, bad), span(bad + 1, DELISTED))):
            ended = await w.ask(f"part {n}", OLD, 60, part)
            assert ended.record.status is OK
            assert [row[4] for row in (await w.rows(ended)).values()] == [
                float(m) for m in range(LISTED, DELISTED) if part.start_ns <= at(m) < part.end_ns
            ]


async def test_unknown_symbol_and_period_not_offered_are_errors_for_all_of_the_range(tmp_path: Path) -> None:
    async with whole(tmp_path, sim=settings(tmp_path)) as w:
        record = (await w.ask("r", NEVER, 60, span(0, 10))).record
        assert (record.status, record.missing) == (ERROR, (span(0, 10),))
        assert "symbol 'NEVER/USDT' is unknown to SIM" in record.error_message
    (tmp_path / "other").mkdir()
    async with whole(tmp_path / "other", sim=settings(tmp_path), venue={"ccxt": "coinbase"}) as w:
        record = (await w.ask("r", LIVE, 1, TimeRange(at(0), at(0) + 10 * SECOND_NS))).record
        assert record.status is ERROR
        assert [iso(m.end_ns) for m in record.missing] == ["2024-01-01T00:00:10Z"]
        assert "period_seconds 1 (1s) is not offered by SIM; it has 1m, 5m" in record.error_message


async def test_last_candle_is_waited_for_within_the_limit_and_missing_beyond_it(tmp_path: Path) -> None:
    """On the machine's clock, with candles of a second."""
    patient: dict[str, Any] = {"close_wait_seconds": 30, "closing_lag_seconds": 0.1}
    async with whole(tmp_path, sim={"now_ns": None}, **patient) as w:
        now_ns = time.time_ns() // SECOND_NS * SECOND_NS
        soon = TimeRange(now_ns - 5 * SECOND_NS, now_ns + 2 * SECOND_NS)
        ended = await w.ask("soon", LIVE, 1, soon)
        assert (ended.record.status, ended.record.row_count) == (OK, 7)
        assert time.time_ns() >= soon.end_ns
        assert await w.rows(ended) == await w.sim.truth(soon, interval="1s")
        late = TimeRange(now_ns - 5 * SECOND_NS, now_ns + 3_600 * SECOND_NS)
        record = (await w.ask("late", LIVE, 1, late)).record
        (missing,) = record.missing
        assert (record.status, missing.end_ns) == (ERROR, late.end_ns)
        assert now_ns <= missing.start_ns <= time.time_ns()
        assert record.row_count == (missing.start_ns - late.start_ns) // SECOND_NS


async def test_overlapping_requests_at_once_end_alike_and_fetch_each_page_once(tmp_path: Path) -> None:
    async with whole(tmp_path, sim=settings(tmp_path)) as w:
        parts = [span(0, 600), span(0, 600), span(300, 900), span(100, 200)]
        ends = await asyncio.gather(*(w.ask(f"r{n}", LIVE, 60, part) for n, part in enumerate(parts)))
        for ended, part in zip(ends, parts, strict=True):
            assert await w.rows(ended) == await w.sim.truth(part)
        fetched = w.fetched()
        assert sum(t.end_ns - t.start_ns for t in fetched) == 900 * MINUTE_NS


# ---- weeks and months


def weeks(first: str, count: int) -> list[date]:
    return [date.fromisoformat(first) + timedelta(weeks=n) for n in range(count)]


def months(year: int, month: int, count: int) -> list[date]:
    return [date(year + (month - 1 + n) // 12, (month - 1 + n) % 12 + 1, 1) for n in range(count)]


@pytest.mark.parametrize(
    ("period", "since", "until", "opens", "empty"),
    [
        (
            "1w",
            "2023-12-28",
            "2024-04-03T11:00:00+02:00",
            weeks("2023-12-25", 14),
            0,
        ),  # new year, leap day, summer time
        ("1w", "2017-08-01", "2017-09-05", weeks("2017-08-14", 3), 2),  # listed on a Thursday
        ("1M", "2023-10-31T23:59:59", "2024-11-30", months(2023, 10, 13), 0),
        ("1M", "2017-05-15", "2018-03-15", months(2017, 8, 7), 3),
        ("1d", "2024-02-27", "2024-04-02", [date(2024, 2, 27) + timedelta(n) for n in range(35)], 0),
    ],
)
async def test_weeks_and_months_from_the_words_of_a_user_to_the_rows(
    tmp_path: Path, period: str, since: str, until: str, opens: list[date], empty: int
) -> None:
    async with whole(tmp_path, sim={"now_ns": CLOCK_NS}, page_candles=5) as w:
        rows = await w.client.history(LIVE, period, since, until, request_id="r", timeout=60)
        found: list[Any] = rows.column("open_time").to_pylist()
        assert [moment.astimezone(UTC) for moment in found] == [
            datetime(day.year, day.month, day.day, tzinfo=UTC) for day in opens
        ]
        record = await w.client.get_request("r")
        assert (record.status, record.empty_periods) == (OK, empty)
        seconds = {"1d": 86_400, "1w": WEEK_SECONDS, "1M": MONTH_SECONDS}[period]
        ended = await w.ask("again", LIVE, seconds, record.span)
        assert await w.rows(ended) == await w.sim.truth(record.span, "BTCUSDT", period)


async def test_running_week_and_month_are_not_closed(tmp_path: Path) -> None:
    """The exchange's clock stands on 2025-11-25, a Tuesday."""
    async with whole(tmp_path, sim={"now_ns": CLOCK_NS}) as w:
        for name, period, first, running, end in (
            ("1w", WEEK_SECONDS, "2025-11-03", "2025-11-24", "2025-12-01"),
            ("1M", MONTH_SECONDS, "2025-09-01", "2025-11-01", "2025-12-01"),
        ):
            asked = TimeRange(parse_time(first), parse_time(end))
            record = (await w.ask(name, LIVE, period, asked)).record
            assert (record.status, record.missing) == (ERROR, (TimeRange(parse_time(running), asked.end_ns),))
            assert record.row_count == {"1w": 3, "1M": 2}[name]


async def test_week_that_begins_on_another_day_is_refused_by_the_relay_and_floored_by_the_client(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path, sim={"now_ns": CLOCK_NS}) as w:
        thursday = TimeRange(parse_time("2024-01-04"), parse_time("2024-01-18"))
        with pytest.raises(RequestRefused, match="is not on the 1w grid; the open before it is 1704067200000000000"):
            await w.client.submit(HistoryRequest("r", LIVE, thursday.start_ns, thursday.end_ns, WEEK_SECONDS))
        rows = await w.client.history(LIVE, "1w", thursday.start_ns, thursday.end_ns, timeout=60)
        assert rows.num_rows == 2
