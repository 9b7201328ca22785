from __future__ import annotations

from dataclasses import replace
from typing import Any

import ccxt.async_support as ccxt
import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import at
from dexorder_ingestor.exchange.dialect import CallLimits, CandleFacts, Dialect, Remedy
from dexorder_ingestor.exchange.dialects import DIALECTS, dialect_modules, dialect_of
from dexorder_ingestor.exchange.failures import announced_pause, as_bad_answer, is_slow_down, is_transient

REPEAT, SLOW, NO = Remedy.REPEAT, Remedy.SLOW_DOWN, None


def test_every_row_is_an_exchange_of_ccxt_with_the_history_it_names() -> None:
    for ccxt_id, row in DIALECTS.items():
        assert ccxt_id == row.ccxt
        client = getattr(ccxt, ccxt_id)()
        assert client.has["fetchTrades" if row.history == "trades" else "fetchOHLCV"] is True
        nothing_known = CandleFacts(row.candles.limit)  # only its trades are
        assert row.candles.rows_at is not None or row.candles == replace(nothing_known, narrow=row.candles.narrow)
    assert {c for c, row in DIALECTS.items() if row.candles.limits.names_symbol} == {"bybit", "kraken"}


def test_each_file_is_named_by_ccxts_id_of_its_exchange_and_explains_it() -> None:
    for module in dialect_modules():
        assert module.__name__.rpartition(".")[2] == module.DIALECT.ccxt
        assert len((module.__doc__ or "").splitlines()) > 2, "its docstring is its section of docs/exchanges.md"


@pytest.mark.parametrize("features", [None, {}, {"spot": None}, {"spot": {"fetchOHLCV": {"limit": "many"}}}])
def test_exchange_nobody_wrote_about_is_taken_with_care(features: Any) -> None:
    assert dialect_of("htx", features) == Dialect("htx", CandleFacts(500))


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
        ("binance", 'binance {"code":-1016,"msg":"This service is no longer available."}', REPEAT),
        ("binance", 'binance {"code":-1121,"msg":"Invalid symbol."}', NO),
        ("kraken", 'kraken {"error":["EService:Throttled"]}', SLOW),
        ("kraken", 'kraken {"error":["EService: Throttled: 1700000007"]}', SLOW),
        ("kraken", 'kraken {"error":["EQuery:Unknown asset pair"]}', NO),
        ("okx", 'okx {"code":"50001","data":[],"msg":"Service temporarily unavailable."}', REPEAT),
        ("okx", 'okx {"code":"50011","data":[],"msg":"Too Many Requests"}', SLOW),
        ("okx", 'okx {"code":"51001","data":[],"msg":"Instrument ID does not exist"}', NO),
        ("bybit", 'bybit {"retCode":10006,"retMsg":"Too many visits!","result":{}}', SLOW),
        ("bybit", 'bybit {"retCode":10016,"retMsg":"System error. Please try again later."}', REPEAT),
        ("bybit", 'bybit {"retCode":10001,"retMsg":"params error: symbol invalid"}', NO),
        ("coinbase", 'coinbase {"errors":[{"id":"internal_server_error","message":"-1008"}]}', REPEAT),
        ("coinbase", 'coinbase {"error":"not_found"}', NO),
        ("bitget", 'bitget {"code":"40015","msg":"","requestTime":1595698564931,"data":null}', REPEAT),
        ("bitget", 'bitget {"code":"40034","msg":"Parameter does not exist","data":null}', NO),
        ("okx", "okx GET https://x/y 404 Not Found <html>{", NO),
        ("gate", 'gate {"code":-1008}', NO),
    ],
)
def test_codes_that_heal(exchange: str, text: str, remedy: Remedy | None) -> None:
    facts, error = dialect_of(exchange).errors, ccxt.ExchangeError(text)
    assert facts.remedy(text) is remedy
    assert is_transient(error, facts) == (remedy is not None)
    assert is_slow_down(error, facts) == (remedy is SLOW)


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
    bad = as_bad_answer(error, DIALECTS["okx"].errors, status=status, answer=answer)
    assert (bad and bad.kind) == kind


def test_kraken_says_with_status_200_how_long_to_stay_away() -> None:
    body, errors = '{"error":["EService: Throttled: 1700000007"]}', DIALECTS["kraken"].errors
    assert announced_pause(200, {}, body, errors, default=5, wall_ns=1_700_000_000 * SECOND_NS) == 7


@pytest.mark.parametrize(
    ("ccxt_id", "features", "limits"),
    [
        ("binance", None, CallLimits(1000, wide=True)),
        ("kraken", None, CallLimits(240, wide=True, names_symbol=True)),
        ("bitget", {"spot": {"fetchOHLCV": {"limit": 9}}}, CallLimits(200)),
        ("bybit", None, CallLimits(1000, names_symbol=True)),
        ("coinbase", {"spot": {"fetchOHLCV": {"limit": 9}}}, CallLimits(300)),
        ("htx", {"spot": {"fetchOHLCV": {"limit": 200}}}, CallLimits(200)),
        ("bitfinex", {"spot": {"fetchOHLCV": {"limit": 10_000}}}, CallLimits(1000)),
        (
            "mexc",
            {"spot": {"fetchOHLCV": {"limit": 1500}}, "swap": {"linear": {"fetchOHLCV": {"limit": 500}}}},
            CallLimits(500),
        ),
        ("apex", {"spot": None, "swap": {"linear": {"fetchOHLCV": {"limit": 200}}}}, CallLimits(200)),
        ("new", {"spot": {"fetchOHLCV": None}}, CallLimits(500)),
        ("new", {"spot": None}, CallLimits(500)),
        ("new", None, CallLimits(500)),
    ],
)
def test_limits_of_a_call(ccxt_id: str, features: dict[str, object] | None, limits: CallLimits) -> None:
    assert dialect_of(ccxt_id, features).candles.limits == limits
