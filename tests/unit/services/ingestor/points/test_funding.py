"""Funding rates from the simulated exchange to Kafka, through unmodified ccxt, in both exchanges' dialects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.datasets import FUNDING
from dexorder_common.model.page import Kind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.instruments import Funding
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialects.binance import DIALECT
from dexorder_ingestor.points.fetch import SettledPoint, sources
from dexorder_ingestor.points.funding import FundingSource, read_answer
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.market.v1 import funding_pb2
from tests.examples import first_in_gate
from tests.unit.services.ingestor.conftest import NOW_NS, World, exchanges_file, running_sim, running_world

DAY = 86_400
START = 1_690_848_000
"""2023-08-01."""
CHANGES = ((START - 365 * DAY, 8), (START + 30 * DAY, 4), (START + 60 * DAY, 1))
SPAN = TimeRange(START * SECOND_NS, (START + 90 * DAY) * SECOND_NS)
TICKER = "BTC/USDT:USDT.SIM"
JOB = "1-00000000000000aa"
TRUTH = Funding("BTCUSDT", CHANGES)


def rates(span: TimeRange) -> dict[int, float]:
    times_s = TRUTH.times_s(span.start_ns // SECOND_NS, span.end_ns // SECOND_NS)
    return {time_s * SECOND_NS: float(TRUTH.rate(time_s)) for time_s in times_s}


@asynccontextmanager
async def world(folder: Path, ccxt: str, *faults: dict[str, Any], now_ns: int = NOW_NS) -> AsyncIterator[World]:
    async with running_sim(funding={"BTCUSDT": CHANGES, "ETHUSDT": CHANGES}, now_ns=now_ns) as sim:
        await sim.faults(*faults)
        exchanges = exchanges_file(folder, sim.url, ccxt=ccxt, options={"fetchMarkets": {"types": ["linear"]}})
        async with running_world(folder, exchanges) as there:
            yield there


async def fetched(world: World, span: TimeRange, ticker: str = TICKER) -> tuple[pb.DataResponse, dict[int, float]]:
    """Run a job; return its final record and the rates of its pages, each checked against its range."""
    request = pb.DataRequest(request_id="r", job_id=JOB, type=pb.DataRequest.DATASET, ticker=ticker, dataset="funding")
    request.historical.start_time, request.historical.end_time = span.start_ns, span.end_ns
    identity, _ = await world.broker.wait_for(pb.WorkerReady)
    await world.broker.send(identity, request)
    _, complete = await world.broker.wait_for(pb.WorkComplete, request.job_id)
    assert complete.success, complete.error_message
    found, end_ns = dict[int, float](), span.start_ns
    for record in world.gateway.pages(JOB):
        assert (record.topic, record.control.period_seconds) == (FUNDING.topic, 0)
        assert record.control.span.start_ns == end_ns
        end_ns = record.control.span.end_ns
        for rate in funding_pb2.FundingRates.FromString(record.message).rates:
            assert record.control.span.start_ns <= rate.funding_time_ns < end_ns
            assert rate.funding_time_ns not in found
            found[rate.funding_time_ns] = rate.rate
    final = world.gateway.final(JOB)
    assert (final.control.kind, final.topic) == (Kind.FINAL, FUNDING.topic)
    if final.value.status != pb.DataResponse.ERROR:
        assert end_ns == span.end_ns
    return final.value, found


@pytest.mark.parametrize("ccxt", ["binance", "bybit"])
@pytest.mark.parametrize(
    "faults",
    first_in_gate(
        [
            [{"kind": "behind", "lag_s": 20_000, "every": 2}, {"kind": "drop_last", "every": 3}],
            [{"kind": "hole", "probability": 0.3, "place": "random", "size": 3}, {"kind": "empty", "every": 5}],
            [],
            [{"kind": "short", "probability": 0.2}, {"kind": "newest", "probability": 0.2}],
            [{"kind": "edited", "probability": 0.3, "place": "random"}, {"kind": "null_fields", "every": 3}],
            [{"kind": "other_symbol", "every": 3}, {"kind": "http_502", "every": 4}, {"kind": "outside", "every": 5}],
        ],
        2,
    ),
    ids=lambda faults: "+".join(each["kind"] for each in faults) or "none",
)
async def test_rates_whose_interval_changes_from_8_to_4_to_1_hours_arrive_once_each(
    tmp_path: Path, ccxt: str, faults: list[dict[str, Any]]
) -> None:
    async with world(tmp_path, ccxt, *faults) as there:
        final, found = await fetched(there, SPAN)
        assert found == rates(SPAN)
        assert (final.status, final.total_records) == (pb.DataResponse.OK, len(found))


@pytest.mark.parametrize("ccxt", ["binance", "bybit"])
async def test_rates_are_known_until_the_exchanges_next_funding_time_and_no_further(tmp_path: Path, ccxt: str) -> None:
    now_ns = (START + 40 * DAY + 5 * 3_600) * SECOND_NS  # the interval is 4 h
    next_ns = now_ns + 3 * 3_600 * SECOND_NS
    span = TimeRange(now_ns - 10 * DAY * SECOND_NS, next_ns + 1)
    async with world(tmp_path, ccxt, now_ns=now_ns) as there:
        final, found = await fetched(there, span)
        assert found == {time_ns: rate for time_ns, rate in rates(span).items() if time_ns <= now_ns}
        assert final.status == pb.DataResponse.ERROR
        assert final.error_message == "funding rates from 2023-09-10T08:00:00Z on are not known to SIM yet"
        assert there.gateway.pages(JOB)[-1].control.span.end_ns == next_ns


async def test_a_market_without_funding_rates_is_named(tmp_path: Path) -> None:
    async with world(tmp_path, "binance") as there:
        final, _ = await fetched(there, SPAN, "SOL/USDT:USDT.SIM")
        assert final.status == pb.DataResponse.ERROR
        assert "SOL/USDT:USDT" in final.error_message


async def test_before_the_first_rate_there_is_none(tmp_path: Path) -> None:
    span = TimeRange((START - 500 * DAY) * SECOND_NS, (START - 400 * DAY) * SECOND_NS)
    async with world(tmp_path, "binance") as there:
        final, found = await fetched(there, span)
        assert (final.status, found) == (pb.DataResponse.NOT_FOUND, {})
        assert [record.control.span for record in there.gateway.pages(JOB)] == [span]


def test_every_dataset_that_the_given_protocol_lacks_has_its_source() -> None:
    assert {dataset: source.dataset for dataset, source in sources().items()} == {FUNDING: FUNDING}


def test_a_page_has_these_bytes() -> None:
    points = (
        SettledPoint(28_800 * SECOND_NS, (0.0001, 42.5), None),
        SettledPoint(57_600 * SECOND_NS, (-0.5, None), 28_800),
    )
    assert FundingSource().encode(points) == bytes.fromhex(
        "0a1a08808094ae98c606112d431cebe2361a3f190000000000404540"  # time, rate, mark price
        "0a15088080a8dcb08c0d11000000000000e0bf2080e101"  # time, rate, interval
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"symbol": "ETHUSDT"}, "is of 'ETHUSDT' instead of BTCUSDT"),
        ({"fundingRate": None}, "invalid values"),
        ({"fundingRate": "nan"}, "impossible values"),
        ({"fundingRate": "1.5"}, "impossible values"),
        ({"markPrice": "-1"}, "impossible values"),
        ({"fundingTime": 5}, "outside"),
    ],
)
def test_an_answer_that_is_not_valid_is_refused(change: dict[str, Any], fault: str) -> None:
    row = {"symbol": "BTCUSDT", "fundingTime": START * 1000, "fundingRate": "0.0001", "markPrice": ""} | change
    with pytest.raises(BadAnswer, match=fault):
        read_answer([row], DIALECT.points[FUNDING], "BTCUSDT", SPAN)
