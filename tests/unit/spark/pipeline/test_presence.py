import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import FileScanTask

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import OHLC
from dexorder_spark.pipeline import presence
from dexorder_spark.pipeline.presence import FoundFile, difference, find, latest
from dexorder_spark.pipeline.ranges import ScanRange
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import MINUTE_NS, TICKER, candle, control, span
from tests.fakes.staged import files_of_pages

Version = tuple[int | None, int | None]
Row = tuple[int, Version]


def versions(rows: list[Row], ticker: str = TICKER) -> pa.Table:
    """Version columns of candles, given as minute and (dispatch, page)."""
    found = [
        {
            "ticker": ticker,
            "period_seconds": 60,
            "open_time": candle(minute).open_ns // 1_000,
            "dispatch": dispatch,
            "page": page,
        }
        for minute, (dispatch, page) in rows
    ]
    return pa.Table.from_pylist(found, schema=CANDLES.arrow_of(CANDLES.version_columns))


def number(version: Version) -> tuple[int, int]:
    """A row of an earlier release has neither, and counts as the oldest."""
    return version[0] or 0, version[1] or 0


numbers = st.none() | st.integers(1, 2) | st.just(2**62 - 1)
minutes = st.integers(0, 6)
some_versions = st.tuples(numbers, st.none() | st.integers(0, 2))
some_rows = st.lists(st.tuples(minutes, some_versions), min_size=1, max_size=9)
some_files = st.lists(st.dictionaries(minutes, some_versions, min_size=1), max_size=3)


def without_repeats(files: list[dict[int, Version]]) -> list[dict[int, Version]]:
    seen: set[int] = set()
    for file in files:
        for minute in seen & file.keys():
            del file[minute]
        seen |= file.keys()
    return [file for file in files if file]


@given(some_rows, some_files)
def test_the_change_makes_the_table_hold_the_largest_version_of_each_candle(
    staged: list[Row], files: list[dict[int, Version]]
) -> None:
    table = without_repeats(files)
    found = [FoundFile(FileScanTask(None), versions(list(file.items()))) for file in table]  # type: ignore[arg-type]
    change = difference(CANDLES, versions(staged), found)
    held = [dict(file) for file in table]
    for index, keys in change.replaced.items():
        for opened in keys.column("open_time").cast(pa.int64()).to_numpy() * 1_000:
            del held[index][int(opened - candle(0).open_ns) // MINUTE_NS]
    rows = [*(item for file in held for item in file.items()), *(staged[n] for n in change.new)]
    expected: dict[int, tuple[int, int]] = {}
    for minute, version in [*(item for file in table for item in file.items()), *staged]:
        expected[minute] = max(number(version), expected.get(minute, (0, 0)))
    assert len(rows) == len({minute for minute, _ in rows}), "a key is there twice"
    assert {minute: number(version) for minute, version in rows} == expected
    stale = {minute for file in table for minute, version in file.items() if number(version) == expected[minute]}
    assert not stale & {staged[n][0] for n in change.new}, "a candle that the table has is not written again"


@given(some_rows)
def test_of_copies_with_one_version_the_first_is_taken(staged: list[Row]) -> None:
    for position in latest(CANDLES, versions(staged)):
        minute, version = staged[position]
        assert staged.index((minute, version)) == position or number(version) == (0, 0)


@pytest.mark.parametrize(
    ("ticker", "first", "count", "files"),
    [
        (TICKER, 0, 2, 1),
        (TICKER, 2, 2, 0),  # within the bounds of the file, but not in the file
        (TICKER, 10, 5, 0),
        ("ETH/USDT.BINANCE", 0, 2, 0),
    ],
)
def test_only_files_with_rows_in_the_ranges_are_found(
    catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch, ticker: str, first: int, count: int, files: int
) -> None:
    target = catalog.load().load_table(OHLC.name)
    files_of_pages(target, [control(0, 2), control(5, 2)], commit=True)
    target.refresh()
    wanted = [ScanRange((ticker,), (60,), span(first, count))]
    assert len(find(CANDLES, target, wanted) or []) == files
    monkeypatch.setattr(presence, "MAX_READ_BYTES", 0)
    found = find(CANDLES, target, wanted)
    assert (found is None) == (ticker == TICKER and first < 10), "the size of a file is that of its matching row groups"
