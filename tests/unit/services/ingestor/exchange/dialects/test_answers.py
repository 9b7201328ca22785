"""Each exchange's answer as it should be, and as it should not."""

from __future__ import annotations

from typing import Any

import pytest

from services.ingestor.exchange.dialects.answers import check_rows
from services.ingestor.exchange.dialects.table import dialect_of
from services.ingestor.exchange.validation import BadAnswer

ROWS = [["1"], ["2"]]
GOOD: dict[str, Any] = {
    "binance": ROWS,
    "bybit": {"retCode": 0, "result": {"symbol": "ID", "category": "spot", "list": ROWS}},
    "coinbase": {"candles": ROWS},
    "kraken": {"error": [], "result": {"ID": ROWS, "last": "7"}},
    "okx": {"code": "0", "msg": "", "data": ROWS},
}
OTHERS = {
    "bybit": {"retCode": 0, "result": {"symbol": "OTHER", "list": ROWS}},
    "kraken": {"error": [], "result": {"OTHER": ROWS, "last": "7"}},
}


@pytest.mark.parametrize("exchange", GOOD)
def test_rows_are_found_where_the_exchange_puts_them(exchange: str) -> None:
    assert check_rows(dialect_of(exchange, None), GOOD[exchange], [1, 2], "ID") == ROWS


@pytest.mark.parametrize("exchange", GOOD)
@pytest.mark.parametrize("rows", [[], [1], [1, 2, 3]])
def test_rows_ccxt_lost_are_missed(exchange: str, rows: list[int]) -> None:
    with pytest.raises(BadAnswer) as caught:
        check_rows(dialect_of(exchange, None), GOOD[exchange], rows, "ID")
    assert caught.value.kind == "window"


@pytest.mark.parametrize("exchange", [*GOOD, "gate"])
@pytest.mark.parametrize("raw", [None, "text", 7, True])
def test_what_is_no_json_is_no_answer(exchange: str, raw: Any) -> None:
    with pytest.raises(BadAnswer) as caught:
        check_rows(dialect_of(exchange, None), raw, [], "ID")
    assert caught.value.kind == "not_json"


@pytest.mark.parametrize("exchange", GOOD)
@pytest.mark.parametrize("raw", [{}, {"data": None}, {"result": []}, {"result": {"symbol": "ID", "list": {}}}])
def test_answer_without_rows_is_not_an_answer_of_no_rows(exchange: str, raw: Any) -> None:
    with pytest.raises(BadAnswer):
        check_rows(dialect_of(exchange, None), raw, [], "ID")


@pytest.mark.parametrize("exchange", OTHERS)
def test_answer_for_another_market_is_refused(exchange: str) -> None:
    with pytest.raises(BadAnswer, match="'ID'") as caught:
        check_rows(dialect_of(exchange, None), OTHERS[exchange], [], "ID")
    assert caught.value.kind == "other_symbol"


def test_candle_that_still_runs_is_not_taken() -> None:
    row = ["1678928760000", "1", "1", "1", "1", "1", "1", "1"]
    okx = dialect_of("okx", None)
    assert check_rows(okx, {"code": "0", "data": [[*row, "1"]]}, [1], "ID")
    with pytest.raises(BadAnswer, match="still runs"):
        check_rows(okx, {"code": "0", "data": [[*row, "1"], [*row, "0"]]}, [1, 2], "ID")


def test_of_an_exchange_nobody_wrote_about_only_lists_can_be_counted() -> None:
    gate = dialect_of("gate", None)
    assert check_rows(gate, {"any": "thing"}, [1], "ID") is None
    assert check_rows(gate, [1], [1], "ID") == [1]
    with pytest.raises(BadAnswer):
        check_rows(gate, [1, 2], [1], "ID")
