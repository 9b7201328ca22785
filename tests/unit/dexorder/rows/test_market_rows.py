"""Stored trades and snapshots of tickers, read from a small real table."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from dexorder import Client
from dexorder.errors import CatalogError, HistoryFailed, RequestRefused
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import TICKERS, TICKS
from dexorder_common.model.times import SECOND_NS, to_datetime
from tests.fakes.candle_table import START
from tests.fakes.relay_server import FakeRelay, Notify, ended, serving
from tests.rig.command import dexorder

TICKER = "BTC/USDT.SIM"
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option")  # pyiceberg writes larger row groups


def at(seconds: float) -> dt.datetime:
    return to_datetime(START + int(seconds * SECOND_NS))


def trade(trade_id: str, seconds: float, ticker: str = TICKER, side: str | None = "buy") -> dict[str, Any]:
    values = {"price": 100.0, "amount": 0.5, "side": side, "received_at": at(seconds), "dispatch": 1}
    return {"ticker": ticker, "trade_id": trade_id, "time": at(seconds), **values}


def snapshot(ticker: str, last: float, received: float, dispatch: int = 1, page: int = 0) -> dict[str, Any]:
    values = {"last": last, "quote_volume": last * 10, "received_at": at(received), "dispatch": dispatch, "page": page}
    return {"ticker": ticker, "time": at(received), **values}


@pytest.fixture
def market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRelay]:
    """A relay that has accepted its requests at START + 100 s, and two tables."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    catalog = CatalogSettings(uri=uri, warehouse=warehouse).load()
    trades = [trade("10", 2), trade("9", 2), trade("8", 1), trade("11", 3, side=None), trade("1", 2, "ETH/USDT.SIM")]
    TICKS.load_or_create(catalog).append(pa.Table.from_pylist(trades, schema=TICKS.arrow))
    snapshots = [
        snapshot("ETH/USDT.SIM", 5.0, 100),
        snapshot("BTC/USDT.SIM", 1.0, 100, dispatch=7),
        snapshot("BTC/USDT.SIM", 2.0, 99, dispatch=8),
        snapshot("LUNA/USDT.SIM", 3.0, 10),
        snapshot("BTC/USDT.OTHERSIM", 4.0, 100),
    ]
    TICKERS.load_or_create(catalog).append(pa.Table.from_pylist(snapshots, schema=TICKERS.arrow))
    catalog.close()
    for name in ("DEXORDER_CATALOG_NAME", "DEXORDER_CATALOG_URI", "DEXORDER_CATALOG_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)
    relay = FakeRelay({"uri": uri, "warehouse": warehouse}, ended(Notify.OK, submitted_ns=START + 100 * SECOND_NS))
    with serving(relay):
        monkeypatch.setenv("DEXORDER_RELAY", relay.address)
        yield relay


def test_trades_come_by_time_and_id_and_only_those_of_the_market_and_range(market: FakeRelay) -> None:
    with Client() as client:
        found = client.trades(TICKER, START + SECOND_NS, START + 3 * SECOND_NS)
        assert found["trade_id"].to_pylist() == ["8", "9", "10"]
        assert found.column_names == [
            "ticker",
            "trade_id",
            "time",
            "price",
            "amount",
            "side",
            "received_at",
            "revision",
        ]
        assert client.trades(TICKER, START, "now")["side"].to_pylist()[-1] is None
        assert client.trades("XRP/USDT.SIM", START).num_rows == 0
        with pytest.raises(RequestRefused, match="is not after since"):
            client.trades(TICKER, START + SECOND_NS, START)
        with pytest.raises(RequestRefused, match="since 'soon' is not a time"):
            client.trades(TICKER, "soon")


def test_a_snapshot_has_the_last_row_of_each_market_since_the_request(market: FakeRelay) -> None:
    with Client() as client:
        found = client.snapshot_tickers("SIM", request_id="s1")
    assert found.select(["ticker", "last"]).to_pylist() == [
        {"ticker": "BTC/USDT.SIM", "last": 2.0},
        {"ticker": "ETH/USDT.SIM", "last": 5.0},
    ]
    assert [(r.request_id, r.ticker) for r in market.submitted] == [("s1", "*.SIM")]


def test_a_snapshot_that_fails_or_is_refused_says_why(market: FakeRelay) -> None:
    market.ends_of["*.SIM"] = ended(Notify.ERROR, error_message="the exchange is down")
    market.refuse_tickers["*.MOON"] = "exchange 'MOON' is unknown"
    with Client() as client:
        with pytest.raises(HistoryFailed, match="the exchange is down"):
            client.snapshot_tickers("SIM")
        with pytest.raises(RequestRefused, match="'MOON' is unknown"):
            client.snapshot_tickers("MOON")


def test_a_table_that_does_not_exist_is_named(market: FakeRelay, tmp_path: Path) -> None:
    catalog = CatalogSettings(uri=market.properties["uri"], warehouse=market.properties["warehouse"]).load()
    catalog.drop_table(TICKS.name)
    catalog.close()
    with Client() as client, pytest.raises(CatalogError, match=r"does not contain the table trading\.ticks"):
        client.trades(TICKER, START)


def test_the_command_prints_the_largest_markets(market: FakeRelay, tmp_path: Path) -> None:
    run = partial(dexorder, "tickers", "SIM")

    shown = run("--top", "1")
    assert shown.exit_code == 0, shown.stderr
    assert [line.split()[:2] for line in shown.stdout.splitlines() if "/" in line] == [["ETH/USDT.SIM", "5"]]
    assert "1 of 2 markets" in shown.stderr
    found = json.loads(run("--json", "--filter", "btc").stdout)
    assert [(each["ticker"], each["last"], each["bid"]) for each in found] == [("BTC/USDT.SIM", 2.0, None)]
    assert run("--out", str(tmp_path / "t.parquet")).exit_code == 0
    assert parquet.read_table(tmp_path / "t.parquet").num_rows == 2
