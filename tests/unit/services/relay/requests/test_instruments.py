"""Instruments of an exchange: stored, refused, and kept across a restart."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import CandleOffer, InstrumentKind, InstrumentList, ListedInstrument
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_relay.requests.instruments import check
from tests.unit.services.relay.harness import Suite, refused, suite

SPOT = rpb.INSTRUMENT_KIND_SPOT


def market(symbol: str, **fields: Any) -> rpb.Instrument:
    return rpb.Instrument(
        **{"ticker": f"{symbol}.SIM", "active": True, "kind": SPOT, "base": "B", "quote": "Q", **fields}
    )


async def report(s: Suite, markets: list[rpb.Instrument], fetched_ns: int, exchange: str = "SIM") -> None:
    await s.ingestors.ReportInstruments(
        ipb.ReportInstrumentsRequest(exchange=exchange, instruments=markets, fetched_ns=fetched_ns)
    )


async def listed(s: Suite, exchange: str = "SIM") -> Any:
    return await s.relay.history.ListInstruments(rpb.ListInstrumentsRequest(exchange=exchange))


async def test_newest_report_is_listed_by_ticker_and_survives_a_restart(tmp_path: Path) -> None:
    one, two = market("A/Q"), market("B/Q:Q", active=False, kind=rpb.INSTRUMENT_KIND_SWAP)
    async with suite(tmp_path) as s:
        await report(s, [market("OLD/Q")], 10)
        await report(s, [two, one], 20)
        await report(s, [market("OLDER/Q")], 19)
        answer = await listed(s)
        assert (list(answer.instruments), answer.fetched_ns) == ([one, two], 20)
    async with suite(tmp_path) as s:
        assert await listed(s) == answer
        await report(s, [one], 20)  # the same moment, told by another ingestor
        assert list((await listed(s)).instruments) == [one]


async def test_all_that_an_exchange_says_is_listed_in_pages_and_survives_a_restart(tmp_path: Path) -> None:
    sizes = {"tick_size": 1e-8, "lot_size": 5e-324, "contract_size": sys.float_info.max}
    times = {"expiry_ns": MAX_TIME_NS, "listed_ns": 0, "delisted_ns": 1}
    told = [
        market("A/Q:Q-261225", kind=rpb.INSTRUMENT_KIND_FUTURE, exchange_id="aq", settle="Q", **sizes),
        rpb.Instrument(ticker="B/Q.SIM"),
        market("C/Q", kind=rpb.INSTRUMENT_KIND_OPTION, **times),
    ]
    async with suite(tmp_path) as s:
        await report(s, told[::-1], 1)
        assert [each async for each in paged(s)] == told
    async with suite(tmp_path) as s:
        assert [each async for each in paged(s)] == told


async def paged(s: Suite) -> AsyncIterator[rpb.Instrument]:
    """Yield what is listed, in pages of one."""
    request = rpb.ListInstrumentsRequest(exchange="SIM", page_size=1)
    while True:
        answer = await s.relay.history.ListInstruments(request)
        for each in answer.instruments:
            yield each
        request.page_token = answer.next_page_token
        if not request.page_token:
            return


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"ticker": ""}, "instruments[1].ticker is missing"),
        ({"ticker": f"{'A' * 257}.SIM"}, "instruments[1].ticker 'AAA"),
        ({"kind": 99}, "instruments[1].kind 99 is not a value of InstrumentKind"),
        ({"base": "A" * 257}, "instruments[1].base 'AAA"),
        ({"exchange_id": "A" * 257}, "instruments[1].exchange_id 'AAA"),
        ({"exchange_id": ""}, "'B/Q.SIM': exchange_id is empty"),
        ({"settle": ""}, "'B/Q.SIM': settle is empty"),
        *(
            ({name: value}, f"'B/Q.SIM': {name} {value} is not positive and finite")
            for name in ("tick_size", "lot_size", "contract_size")
            for value in (0.0, -0.5, math.nan, math.inf)
        ),
        *(
            ({name: 2**63}, f"instruments[1].{name} {2**63} is over {MAX_TIME_NS}")
            for name in ("expiry_ns", "listed_ns", "delisted_ns")
        ),
    ],
)
async def test_report_with_one_invalid_field_changes_nothing(tmp_path: Path, fields: Any, text: str) -> None:
    async with suite(tmp_path) as s:
        await report(s, [market("OLD/Q")], 1)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, text):
            await report(s, [market("A/Q"), market("B/Q", **fields)], 2)
        assert list((await listed(s)).instruments) == [market("OLD/Q")]


async def test_duplicates_are_refused_whatever_else_they_say(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for other in (market("A/Q", exchange_id="a"), market("A/Q", kind=None), market("A/Q")):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "ticker 'A/Q.SIM' is a duplicate"):
                await report(s, [market("A/Q"), other], 1)


async def test_offer_of_candles_is_listed_and_survives_a_restart(tmp_path: Path) -> None:
    offer = rpb.CandleOffer(period_seconds=[60, 3_600], call_candles=250, learnt=True, volume_tolerance=1e-9)
    async with suite(tmp_path) as s:
        await s.ingestors.ReportInstruments(
            ipb.ReportInstrumentsRequest(exchange="SIM", instruments=[market("A/Q")], fetched_ns=1, candles=offer)
        )
        assert (await listed(s)).candles == offer
    async with suite(tmp_path) as s:
        assert (await listed(s)).candles == offer
        await report(s, [market("A/Q")], 2)
        assert not (await listed(s)).HasField("candles")


@pytest.mark.parametrize(
    ("offer", "text"),
    [
        (CandleOffer((60,), 0), "call_candles 0"),
        (CandleOffer((61,), 5), r"period_seconds \[61\]"),
        (CandleOffer((60,), 5, volume_tolerance=1.0), "volume_tolerance 1.0"),
        (CandleOffer((60,), 5, volume_tolerance=math.nan), "volume_tolerance nan"),
    ],
)
def test_invalid_offer_is_refused(offer: CandleOffer, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        check(InstrumentList("SIM", (ListedInstrument("A.SIM", True),), 1, offer), now_ns=5)


async def test_a_large_exchange_is_listed_in_pages_and_reported_in_one_message(tmp_path: Path) -> None:
    symbols = [f"BASE{n:05}/USDT:USDT-261225-{n}-C" for n in range(3_000)]
    made = [market(each, base="BASE00000", quote="USDT", kind=rpb.INSTRUMENT_KIND_OPTION) for each in symbols]
    assert sum(each.ByteSize() for each in made) < 4 * 1024 * 1024 / 10
    async with suite(tmp_path) as s:
        await report(s, made, 1)
        found, sizes, request = [], [], rpb.ListInstrumentsRequest(exchange="SIM", page_size=999)
        while True:
            answer = await s.relay.history.ListInstruments(request)
            found += [each.ticker for each in answer.instruments]
            sizes.append(len(answer.instruments))
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
        assert (found, sizes) == ([each.ticker for each in made], [999, 999, 999, 3])
        assert len((await listed(s)).instruments) == 100


async def test_unknown_and_unreported_exchanges(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for call, code, text in (
            (listed(s), grpc.StatusCode.NOT_FOUND, "no ingestor has reported the markets of 'SIM'"),
            (listed(s, "MOON"), grpc.StatusCode.NOT_FOUND, "exchange 'MOON' is not known; this relay has SIM"),
            (report(s, [market("A/Q")], 1, "MOON"), grpc.StatusCode.INVALID_ARGUMENT, "exchange 'MOON' is not known"),
            (report(s, [], 1), grpc.StatusCode.INVALID_ARGUMENT, "instruments is missing"),
        ):
            with refused(code, text):
                await call


@pytest.mark.parametrize(
    ("tickers", "fetched_ns", "text"),
    [
        (["A.SIM"], 0, "fetched_ns 0"),
        (["A.SIM"], 2**64 - 1, "fetched_ns"),
        (["A.MOON"], 1, "ticker 'A.MOON' is not one of exchange 'SIM'"),
        (["A"], 1, "ticker 'A' is not SYMBOL.VENUE"),
        (["A.SIM", "B.SIM", "A.SIM"], 1, "ticker 'A.SIM' is a duplicate"),
    ],
)
def test_report_that_can_not_be_one(tickers: list[str], fetched_ns: int, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        instruments = tuple(ListedInstrument(t, True) for t in tickers)
        check(InstrumentList("SIM", instruments, fetched_ns), now_ns=5)


def test_time_after_now_is_now() -> None:
    markets = (ListedInstrument("A.SIM", True, InstrumentKind.SPOT, "A", "Q"),)
    assert check(InstrumentList("SIM", markets, 99), now_ns=5) == InstrumentList("SIM", markets, 5)
