"""Reports of an exchange's instruments: their content, and that they never disturb dispatches."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.instrument import CandleOffer, InstrumentKind, ListedInstrument
from dexorder_common.rpc.history_messages import decode_instrument
from dexorder_ingestor import instrument_reports
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.instrument_reports import InstrumentReporter
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import CallRefused
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.unit.services.ingestor.conftest import (
    FAST,
    NOW_NS,
    Sim,
    StartWorld,
    exchanges_file,
    minutes,
    running_sim,
    running_world,
)
from tests.unit.services.ingestor.fakes import dispatch
from tests.unit.services.ingestor.test_ingestor import run_job


def ns(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp()) * 10**9


async def test_instruments_are_reported_at_start_and_again(sim: Sim, world_of: StartWorld) -> None:
    async with world_of(instruments_refresh_seconds=0.05) as world:
        first, second = [await world.relay.markets.get() for _ in range(2)]
        assert first.exchange == "SIM"
        by_ticker = {m.ticker: m for m in first.instruments}
        btc, luna = by_ticker["BTC/USDT.SIM"], by_ticker["LUNA/USDT.SIM"]
        assert (btc.active, btc.kind, btc.base, btc.quote) == (True, pb.INSTRUMENT_KIND_SPOT, "BTC", "USDT")
        assert (btc.exchange_id, btc.tick_size, btc.lot_size) == ("BTCUSDT", 0.01, 1e-5)
        assert not luna.active
        offer = first.candles
        assert (offer.call_candles, offer.learnt, offer.volume_tolerance) == (1_000, False, 1e-12)
        assert {60, 3_600, 86_400} < set(offer.period_seconds)
        assert NOW_NS < first.fetched_ns < second.fetched_ns


async def test_each_kind_is_reported_with_what_the_exchange_says(tmp_path: Path) -> None:
    types = {"fetchMarkets": {"types": ["spot", "linear", "inverse"]}}
    async with (
        running_sim(futures=True) as there,
        running_world(tmp_path, exchanges_file(tmp_path, there.url, options=types)) as world,
    ):
        report = await world.relay.markets.get()
    by_ticker = {each.ticker: decode_instrument(each) for each in report.instruments}
    dated, gone, inverse, delisted_spot = (
        by_ticker[f"{each}.SIM"] for each in ("BTC/USDT:USDT-301227", "OMG/USDT:USDT", "BTC/USD:BTC", "OMG/USD")
    )
    usual: dict[str, Any] = {"base": "BTC", "quote": "USDT", "settle": "USDT", "contract_size": 1.0}
    assert dated == ListedInstrument(
        *("BTC/USDT:USDT-301227.SIM", True, InstrumentKind.FUTURE),
        **{**usual, "exchange_id": "BTCUSDT_301227", "tick_size": 0.1, "lot_size": 0.001},
        expiry_ns=ns("2030-12-27T08:00"),
        listed_ns=ns("2023-09-29T08:00"),
    )
    assert gone == ListedInstrument(
        *("OMG/USDT:USDT.SIM", False, InstrumentKind.SWAP),
        **{**usual, "base": "OMG", "exchange_id": "OMGUSDT", "tick_size": 0.001, "lot_size": 0.1},
        listed_ns=ns("2020-04-02T07:00"),
        delisted_ns=ns("2023-06-15T09:00"),
    )
    assert (inverse.kind, inverse.contract_size, inverse.settle) == (InstrumentKind.SWAP, 100.0, "BTC")
    assert (delisted_spot.active, delisted_spot.delisted_ns) == (False, None), "Binance names no time of a spot market"


async def test_learnt_limit_is_reported_without_another_list(
    sim: Sim, world_of: StartWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrument_reports, "_LEARNT_SECONDS", 0.05)
    await sim.faults({"kind": "short", "size": 250})
    async with world_of() as world:
        first = await world.relay.markets.get()
        assert (await run_job(world, dispatch("j1", minutes(0, 2_000)))).success
        second = await world.relay.markets.get()
        offer = second.candles
        assert (offer.call_candles, offer.learnt) == (250, True)
        assert (list(second.instruments), second.fetched_ns) == (list(first.instruments), first.fetched_ns)
    async with world_of() as world:
        again = await world.relay.markets.get()
        assert again.candles == offer, "a restart forgets nothing"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT])
async def test_relay_that_refuses_reports_still_gets_its_dispatches(
    world_of: StartWorld, code: grpc.StatusCode
) -> None:
    async with world_of() as world:
        world.relay.markets_trouble = [code]
        await world.relay.markets.get()
        assert (await run_job(world, dispatch("j1", minutes(0, 10)))).success
        assert world.relay.markets.empty()


async def test_dispatches_do_not_wait_for_a_missing_list(sim: Sim, world_of: StartWorld) -> None:
    await sim.faults({"kind": "hang", "path": "/api/v3/exchangeInfo", "count": 1})
    async with world_of(call_timeout_seconds=600) as world:
        assert (await run_job(world, dispatch("j1", minutes(0, 10)))).success


class Stop(Exception):
    """Ends a reporter's loop."""


class Script:
    """A venue and a publisher that fail by a script, record the pauses and end the loop after the last entry."""

    name = "SIM"

    def __init__(self, *troubles: Exception | None) -> None:
        self.troubles = list(troubles)
        self.slept: list[float] = []

    async def instruments(self) -> tuple[tuple[ListedInstrument, ...], int]:
        if isinstance(self.troubles[0], (ExchangeFailure, ValueError)):
            raise self.troubles[0]
        return (), 1

    def offer(self) -> CandleOffer:
        return CandleOffer((60,), 1_000)

    async def report_instruments(self, *_: Any) -> None:
        if self.troubles[0]:
            raise self.troubles[0]

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.troubles.pop(0)
        if not self.troubles:
            raise Stop


async def test_failures_are_retried_after_growing_pauses_and_refusals_with_the_next_refresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away, bad = Unavailable("the relay is away"), ExchangeFailure("SIM is away")
    script: Any = Script(away, bad, ValueError("a bug"), None, away, CallRefused("unknown call"))
    registry = CollectorRegistry()
    settings = IngestorSettings(**{**FAST, "rate_limit_dir": tmp_path})
    reporter = InstrumentReporter([script], script, settings, IngestorMetrics(registry), sleep=script.sleep)
    with pytest.RaisesGroup(Stop):
        await reporter.run()
    bounds = [(2.5, 5), (5, 10), (10, 20), (3600, 3600), (2.5, 5), (3600, 3600)]
    assert all(low <= pause <= high for pause, (low, high) in zip(script.slept, bounds, strict=True)), script.slept

    def count(outcome: str) -> float | None:
        return registry.get_sample_value(
            "dexorder_ingestor_instrument_reports_total", {"venue": "SIM", "outcome": outcome}
        )

    assert (count("failed"), count("ok"), count("refused")) == (4, 1, 1)
    told = capsys.readouterr().out
    assert told.count("the relay is away") == 2, "once in each row of failures"
    assert "SIM is away" not in told and "unknown call" not in told
