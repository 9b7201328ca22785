import json
from functools import partial

import pytest

from dexorder.cli.terminal import output
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.fakes.candle_table import START
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder

EXPIRY_NS = 1_798_185_600 * 10**9


@pytest.fixture
def listed(fake: FakeRelay) -> FakeRelay:
    fake.markets["SIM"] = pb.ListInstrumentsResponse(
        instruments=[
            pb.Instrument(ticker="BTC/USDT.SIM", active=True, kind=pb.INSTRUMENT_KIND_SPOT, base="BTC", quote="USDT"),
            pb.Instrument(
                ticker="BTC/USDT:USDT.SIM", active=True, kind=pb.INSTRUMENT_KIND_SWAP, base="BTC", quote="USDT"
            ),
            pb.Instrument(
                ticker="LUNA/EUR.SIM",
                active=False,
                kind=pb.INSTRUMENT_KIND_SPOT,
                base="LUNA",
                quote="EUR",
                exchange_id="LUNAEUR",
                tick_size=0.01,
                listed_ns=START,
            ),
        ],
        fetched_ns=START,
    )
    return fake


run = partial(dexorder, "markets")


def test_markets_are_printed_as_a_table(listed: FakeRelay) -> None:
    result = run("SIM")
    cells = [line.split() for line in result.stdout.splitlines()]
    assert ["ticker", "active", "kind", "tick", "lot", "expiry"] in cells
    assert ["LUNA/EUR.SIM", "no", "spot", "0.01"] in cells
    assert ["BTC/USDT.SIM", "yes", "spot"] in cells
    assert result.stderr == "3 of 3 markets, fetched 2024-01-01T00:00:00Z\n"


def test_filter_ignores_case(listed: FakeRelay) -> None:
    assert run("SIM", "--filter", "btc", "--tickers").stdout.split() == ["BTC/USDT.SIM", "BTC/USDT:USDT.SIM"]
    found = json.loads(run("SIM", "--filter", "/eur", "--json").stdout)
    assert (found["venue"], found["fetched_at"]) == ("SIM", "2024-01-01T00:00:00Z")
    assert found["markets"] == [
        {
            "ticker": "LUNA/EUR.SIM",
            "active": False,
            "kind": "spot",
            "base": "LUNA",
            "quote": "EUR",
            "exchange_id": "LUNAEUR",
            "settle": None,
            "tick_size": 0.01,
            "lot_size": None,
            "contract_size": None,
            "expiry_ns": None,
            "listed_ns": START,
            "delisted_ns": None,
        }
    ]


def test_json_has_every_field_and_null_for_what_the_exchange_does_not_say(listed: FakeRelay) -> None:
    listed.markets["SIM"] = pb.ListInstrumentsResponse(instruments=[pb.Instrument(ticker="A.SIM")], fetched_ns=START)
    (found,) = json.loads(run("SIM", "--json").stdout)["markets"]
    assert found.keys() == {each.name for each in pb.Instrument.DESCRIPTOR.fields}
    assert {name: value for name, value in found.items() if value is not None} == {"ticker": "A.SIM", "active": False}


def test_table_is_readable_in_80_columns(listed: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of usual markets is a line; only the ticker of an option is folded, and no other cell."""
    usual = [
        pb.Instrument(
            ticker="BTC/USDT:USDT-261225.BINANCE",
            active=True,
            kind=pb.INSTRUMENT_KIND_FUTURE,
            tick_size=0.1,
            lot_size=0.001,
            expiry_ns=EXPIRY_NS,
        ),
        pb.Instrument(
            ticker="SHIB/USDT.BINANCE", kind=pb.INSTRUMENT_KIND_SPOT, tick_size=1e-8, lot_size=0.0001, listed_ns=START
        ),
        pb.Instrument(ticker="X/USD.BINANCE", active=True),
    ]
    option = pb.Instrument(
        ticker="BTC/USDT:USDT-261225-150000-C.BINANCE",
        active=True,
        kind=pb.INSTRUMENT_KIND_OPTION,
        tick_size=5,
        lot_size=0.01,
        expiry_ns=EXPIRY_NS,
    )
    monkeypatch.setattr(output, "_width", lambda _: 80)

    def lines(*instruments: pb.Instrument) -> list[str]:
        listed.markets["SIM"] = pb.ListInstrumentsResponse(instruments=instruments, fetched_ns=START)
        return run("SIM").stdout.splitlines()

    assert [line.split() for line in lines(*usual) if "BINANCE" in line] == [
        ["BTC/USDT:USDT-261225.BINANCE", "yes", "future", "0.1", "0.001", "2026-12-25"],
        ["SHIB/USDT.BINANCE", "no", "spot", "1e-08", "0.0001"],
        ["X/USD.BINANCE", "yes"],
    ]
    folded = lines(*usual, option)
    assert max(map(len, folded)) <= 80
    first = next(number for number, line in enumerate(folded) if "option" in line)
    ticker, *cells = folded[first].split()
    assert cells == ["yes", "option", "5", "0.01", "2026-12-25"]
    assert "".join([ticker, *(line.strip() for line in folded[first + 1 :])]) == option.ticker


def test_learnt_limit_is_named(listed: FakeRelay) -> None:
    offer = pb.CandleOffer(period_seconds=[60, 3600], call_candles=500, learnt=True, newest_first=True)
    listed.markets["SIM"].candles.CopyFrom(offer)
    told = run("SIM").stderr.splitlines()
    assert told[0] == "SIM: 500 candles a call (learnt), newest candles first (learnt); candles of 1m 1h"
    found = json.loads(run("SIM", "--json").stdout)["candles"]
    assert (found["call_candles"], found["learnt"], found["period_seconds"]) == (500, True, [60, 3600])
    assert found["volume_tolerance"] is None


def test_unknown_venue_is_one_sentence(listed: FakeRelay) -> None:
    result = run("MOON")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "venue 'MOON' is unknown: no ingestor has reported" in result.stderr
