from __future__ import annotations

from typing import Any

import ccxt.async_support as ccxt
import pytest

from services.common.model.times import SECOND_NS
from services.ingestor.exchange.dialects.table import TABLE, Dialect, Remedy, at, dialect_of
from services.ingestor.exchange.failures import announced_pause, as_bad_answer, is_slow_down, may_heal

AGAIN, SLOW, NO = Remedy.AGAIN, Remedy.SLOW_DOWN, None


def test_every_row_is_an_exchange_of_ccxt_with_the_history_it_names() -> None:
    for ccxt_id, row in TABLE.items():
        assert ccxt_id == row.ccxt
        client = getattr(ccxt, ccxt_id)()
        assert client.has["fetchTrades" if row.history == "trades" else "fetchOHLCV"] is True
        assert row.rows_at is not None
    assert {c for c, row in TABLE.items() if row.names_symbol} == {"bybit", "kraken"}


@pytest.mark.parametrize("features", [None, {}, {"spot": None}, {"spot": {"fetchOHLCV": {"limit": "many"}}}])
def test_exchange_nobody_wrote_about_is_taken_with_care(features: Any) -> None:
    assert dialect_of("gate", features) == Dialect("gate", 500)


def test_path_that_is_not_there_leads_nowhere() -> None:
    answer = {"result": {"list": [1]}, "errors": [{"id": "x"}]}
    assert at(answer, ("result", "list")) == [1]
    assert at(answer, ("errors", 0, "id")) == "x"
    for path in (("result", 0), ("list",), ("errors", 1), ("errors", "id"), ("result", "list", 0, 0)):
        assert at(answer, path) is None


@pytest.mark.parametrize(
    ("exchange", "text", "remedy"),
    [
        ("binance", 'binance {"code":-1008,"msg":"Server is currently overloaded with other requests."}', SLOW),
        ("binance", 'binance {"code":-1016,"msg":"This service is no longer available."}', AGAIN),
        ("binance", 'binance {"code":-1121,"msg":"Invalid symbol."}', NO),
        ("kraken", 'kraken {"error":["EService:Throttled"]}', SLOW),
        ("kraken", 'kraken {"error":["EService: Throttled: 1700000007"]}', SLOW),
        ("kraken", 'kraken {"error":["EQuery:Unknown asset pair"]}', NO),
        ("okx", 'okx {"code":"50001","data":[],"msg":"Service temporarily unavailable."}', AGAIN),
        ("okx", 'okx {"code":"50011","data":[],"msg":"Too Many Requests"}', SLOW),
        ("okx", 'okx {"code":"51001","data":[],"msg":"Instrument ID does not exist"}', NO),
        ("bybit", 'bybit {"retCode":10006,"retMsg":"Too many visits!","result":{}}', SLOW),
        ("bybit", 'bybit {"retCode":10016,"retMsg":"System error. Please try again later."}', AGAIN),
        ("bybit", 'bybit {"retCode":10001,"retMsg":"params error: symbol invalid"}', NO),
        ("coinbase", 'coinbase {"errors":[{"id":"internal_server_error","message":"-1008"}]}', AGAIN),
        ("coinbase", 'coinbase {"error":"not_found"}', NO),
        ("okx", "okx GET https://x/y 404 Not Found <html>{", NO),
        ("gate", 'gate {"code":-1008}', NO),
    ],
)
def test_codes_that_heal(exchange: str, text: str, remedy: Remedy | None) -> None:
    dialect, error = dialect_of(exchange, None), ccxt.ExchangeError(text)
    assert dialect.remedy(text) is remedy
    assert may_heal(error, dialect) == (remedy is not None)
    assert is_slow_down(error, dialect) == (remedy is SLOW)


@pytest.mark.parametrize(
    ("error", "status", "answer", "kind"),
    [
        (ccxt.ExchangeError("okx {}"), 200, {}, "shape"),
        (ccxt.ExchangeError("okx []"), 200, [], "shape"),
        (ccxt.ExchangeError('okx {"code":"51000"}'), 200, {"code": "51000"}, None),
        (ccxt.ExchangeError('okx {"code":"51000"}'), 502, {"code": "51000"}, "status"),
        (ccxt.BadSymbol("okx does not have market symbol X"), 0, None, None),
        (ccxt.ExchangeError("okx says no before it asks"), 0, None, None),
        (ccxt.ExchangeNotAvailable("okx 502"), 502, None, None),
    ],
)
def test_word_of_a_broken_server_is_no_refusal(error: Exception, status: int, answer: Any, kind: str | None) -> None:
    bad = as_bad_answer(error, TABLE["okx"], status=status, answer=answer)
    assert (bad and bad.kind) == kind


def test_kraken_says_with_status_200_how_long_to_stay_away() -> None:
    body = '{"error":["EService: Throttled: 1700000007"]}'
    assert announced_pause(200, {}, body, default=5, wall_ns=1_700_000_000 * SECOND_NS) == 7
