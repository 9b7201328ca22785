import json
from functools import partial

import pytest

from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.fakes.candle_table import START
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder


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
    assert ["LUNA/EUR.SIM", "no", "spot", "LUNA", "EUR"] in cells
    assert result.stderr == "3 of 3 markets, fetched 2024-01-01T00:00:00Z\n"


def test_filter_ignores_case(listed: FakeRelay) -> None:
    assert run("SIM", "--filter", "btc", "--tickers").stdout.split() == ["BTC/USDT.SIM", "BTC/USDT:USDT.SIM"]
    found = json.loads(run("SIM", "--filter", "/eur", "--json").stdout)
    assert (found["venue"], found["fetched_at"]) == ("SIM", "2024-01-01T00:00:00Z")
    assert found["markets"] == [
        {
            "ticker": "LUNA/EUR.SIM",
            "active": False,
            "type": "spot",
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
