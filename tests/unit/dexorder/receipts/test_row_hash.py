"""The hash of rows without periods, its ambiguities, and the order in which rows must come."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest

from dexorder.errors import ReceiptFailed
from dexorder.receipts.row_hash import hash_rows
from dexorder.rows.table import Rows
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange

TRADE = Series("BTC/USDT.SIM", dataset=TRADES)
SPAN = TimeRange(0, 3 * 86_400 * 10**9)
Trade = tuple[int, str, float, float, str | None]
DAY_US = 86_400 * 10**6


def trades(*rows: Trade) -> Rows:
    names = ("time", "trade_id", "price", "amount", "side")
    types = (pa.timestamp("us", "UTC"), pa.string(), pa.float64(), pa.float64(), pa.string())
    columns = list(zip(*rows, strict=True)) or [()] * 5
    return Rows(pa.table({n: pa.array(list(c), t) for n, c, t in zip(names, columns, types, strict=True)}))


def test_the_hash_is_that_of_the_lines_as_written_by_hand() -> None:
    found = hash_rows(
        [trades((1, "7", 0.1, 2.0, "buy"), (1, "10", 1e22, -0.0, None)), trades((DAY_US, "11", 1, 1, "sell"))],
        TRADE,
        SPAN,
    )
    first = "1|7|0.10000000000000001|2|buy\n1|10|1e+22|-0|"
    days = [hashlib.sha256(text.encode()).hexdigest() for text in (first, f"{DAY_US}|11|1|1|sell")]
    assert found.days == {"1970-01-01": days[0], "1970-01-02": days[1]} and found.count == 3 and not found.holes
    assert found.sha256 == hashlib.sha256(f"1970-01-01 {days[0]}\n1970-01-02 {days[1]}".encode()).hexdigest()


def test_batches_do_not_matter_and_each_value_does() -> None:
    rows: list[Trade] = [(n * 10**9, str(n), 1.0 + n, 2.0, "buy") for n in range(0, 250_000, 1_000)]
    whole = hash_rows([trades(*rows)], TRADE, SPAN)
    assert hash_rows([trades(*rows[:7]), trades(), trades(*rows[7:])], TRADE, SPAN) == whole
    for change in ((0, "1", 1.0, 2.0, "buy"), (0, "0", 1.0 + 2**-52, 2.0, "buy"), (0, "0", 1.0, 2.0, None)):
        assert hash_rows([trades(change, *rows[1:])], TRADE, SPAN).differing_days(whole) == ["1970-01-01"]


def test_texts_that_would_make_two_rows_alike_and_rows_out_of_order_are_refused() -> None:
    for trade_id in ("1|2", "1\n2"):
        with pytest.raises(ReceiptFailed, match="can't be hashed"):
            hash_rows([trades((1, trade_id, 1.0, 1.0, "buy"))], TRADE, SPAN)
    with pytest.raises(ReceiptFailed, match="that it must not have"):
        hash_rows([trades((2, "1", 1.0, 1.0, "buy"), (1, "2", 1.0, 1.0, "buy"))], TRADE, SPAN)
