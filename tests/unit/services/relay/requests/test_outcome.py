"""Outcome of a request against a real table whose rows were changed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.tables import OHLC, rows_in
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_relay.reading import table_reader
from dexorder_relay.reading.rows import CandleRows
from dexorder_relay.reading.table_reader import compare_rows
from dexorder_relay.requests import completion
from dexorder_relay.state.compare import Times
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    OK,
    SERIES,
    TICKER,
    Suite,
    at,
    page,
    ranges,
    span_of,
    suite,
)
from tests.unit.services.relay.state.test_compare import opens, span


async def have(s: Suite, *minutes: int, empty: tuple[int, int] = (3, 4), end: int = 10) -> None:
    """Write rows and claim minutes 0 to ``end``; ``empty`` is verified empty."""
    await s.pipeline.report(snapshot_id=s.pipeline.write(minutes), pages=[page(EARLIER, 0, end, empty=[empty])])


def delete(s: Suite, start: int, end: int) -> None:
    """Delete rows as another writer of the table does."""
    s.pipeline.catalog.load_table(OHLC.name).delete(rows_in(SERIES, TimeRange(at(start), at(end))))


def write_off_grid(s: Suite, minutes: float) -> None:
    table = s.pipeline.catalog.load_table(OHLC.name)
    s.pipeline.write([0], ticker="ETH/USDT.SIM")
    row = table.refresh().scan(row_filter="ticker == 'ETH/USDT.SIM'").to_arrow().to_pylist()[0]
    row |= {"ticker": TICKER, "open_time": row["open_time"].replace(minute=int(minutes), second=30)}
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
async def test_deleted_rows_show_at_once_and_the_next_request_fetches_them(tmp_path: Path) -> None:
    """The snapshot that the pipeline reported still has the rows; readers of the table do not get them."""
    async with suite(tmp_path) as s:
        ingestor = await s.offering()
        await have(s, 0, 1, 2, 4, 5, 6, 7, 8, 9)
        delete(s, 5, 7)
        await s.queued("r", 0, 10)
        record = await s.finished("r")
        assert (record.status, record.row_count, list(record.missing)) == (ERROR, 7, ranges([(5, 7)]))
        current = s.pipeline.catalog.load_table(OHLC.name).current_snapshot()
        assert current is not None and record.snapshot_id == current.snapshot_id
        await s.queued("again", 0, 10)
        (done,) = await ingestor.work(s.pipeline, dispatches=1)
        assert span_of(done) == (5, 7)
        assert ((await s.finished("again")).status, (await s.record("again")).row_count) == (OK, 9)


@pytest.mark.parametrize("limit", [None, 9], ids=["whole", "limit"])
@pytest.mark.parametrize(
    ("surplus", "kind"),
    [(7, "1 duplicate, in [2024-01-01T00:07"), (3, "1 in ranges verified empty, in [2024-01-01T00:03")],
)
async def test_more_rows_than_periods_are_never_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surplus: int, kind: str, limit: int | None
) -> None:
    monkeypatch.setattr(completion, "RETRY_NS", 200_000_000)
    async with suite(tmp_path) as s:
        await have(s, 0, 1, 2, 4, 5, 6, 7, 8, 9)
        s.pipeline.write([surplus])
        await s.queued("r", 0, 10, limit=limit)
        record = await s.finished("r")
        assert (record.status, list(record.missing)) == (ERROR, [])
        assert kind in record.error_message and "verify BTC/USDT.SIM 1m --repair" in record.error_message
        await s.queued("part", 0, 3)
        assert (await s.finished("part")).status == OK, "the rest of the table is not at fault"


async def test_a_row_in_a_range_that_is_verified_empty_as_a_whole_is_an_error(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await have(s, 4, empty=(0, 10))
        await s.queued("r", 0, 10)
        assert (await s.finished("r")).status == ERROR


async def test_a_row_off_the_grid_is_an_error_that_names_its_period(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await have(s, 0, 1, 2, 4, 5, 6, 7, 8, 9)
        write_off_grid(s, 5)
        await s.queued("r", 0, 10)
        record = await s.finished("r")
        assert record.status == ERROR and "1 off the 1m grid, in [2024-01-01T00:05:00Z" in record.error_message


class Minutes(CandleRows):
    """Rows that open at these minutes, without a table."""

    def __init__(self, minutes: list[int]) -> None:
        super().__init__(None, 5)
        object.__setattr__(self, "opens", opens(*minutes))

    def times(self, series: Series, span: TimeRange) -> Times:
        found: Any = getattr(self, "opens")  # noqa: B009
        kept: Times = found[(found >= span.start_ns) & (found < span.end_ns)]
        return kept


@given(rows=st.lists(st.integers(0, 40), max_size=40), limit=st.none() | st.integers(1, 30), window=st.integers(1, 50))
def test_windows_and_limit_cut_the_comparison_where_the_answer_ends(
    rows: list[int], limit: int | None, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_reader, "WINDOW_PERIODS", window)
        reading = compare_rows(Minutes(rows), SERIES, span(0, 41), [span(0, 30)], [span(10, 20)], limit)
    reached = limit is not None and len(rows) >= limit
    end = sorted(rows)[limit - 1] + 1 if limit is not None and reached else 41
    inside = [each for each in rows if each < end]
    assert (reading.span, reading.snapshot_id) == (span(0, end), 5)
    assert reading.missing == ([span(30, end)] if end > 30 else [])
    assert reading.found.rows == len(inside)
    assert reading.found.surplus_rows == len(inside) - len(set(inside))
    lost = {each for each in range(min(end, 30)) if not 10 <= each < 20} - {*rows}
    assert sum(part.end_ns - part.start_ns for part in reading.found.lost) == len(lost) * 60_000_000_000


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
async def test_a_request_waits_for_an_unreadable_table_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "RETRY_NS", 0)
    async with suite(tmp_path, count_attempts=1, request_timeout_seconds=600) as s:
        await have(s, 0, 1, 2, empty=(3, 10))
        (file,) = (tmp_path / "warehouse").rglob("*.parquet")
        away = file.rename(tmp_path / "away")
        await s.queued("r", 0, 10)
        async for answer in s.relay.history.WatchProgress(rpb.WatchProgressRequest(request_id="r"), timeout=30):
            if answer.progress.waiting:
                break
        assert (
            answer.progress.waiting.startswith("trading.ohlc can't be read: ") and file.name in answer.progress.waiting
        )
        assert (await s.record("r")).progress.waiting == answer.progress.waiting
        away.rename(file)
        record = await s.finished("r")
        assert (record.status, record.row_count, record.progress.waiting) == (OK, 3, "")


async def test_a_timeout_names_the_table_that_could_not_be_read(tmp_path: Path) -> None:
    async with suite(tmp_path, count_attempts=1, request_timeout_seconds=0.5) as s:
        await have(s, 0, 1, 2, empty=(3, 10))
        (file,) = (tmp_path / "warehouse").rglob("*.parquet")
        file.unlink()
        await s.queued("r", 0, 10)
        record = await s.finished("r")
        assert record.status == ingest.HistoryReadyNotification.TIMEOUT
        assert record.error_message.startswith("no progress for 0.5 s: trading.ohlc can't be read: ")
