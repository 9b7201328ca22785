import json
from functools import partial
from typing import Any

import pytest

from dexorder_common.model.proof import Proof, ProofKind, encode_proofs
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common_pb
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from tests.fakes.candle_table import HOUR_NS, START, TICKER
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder
from tests.series_messages import series

MINUTE_NS = 60_000_000_000


ASKED_NS = START + 100 * HOUR_NS


def hours(start: int, end: int) -> dict[str, Any]:
    return {"start_ns": START + start * HOUR_NS, "end_ns": START + end * HOUR_NS}


def proof(start: int, end: int, kind: ProofKind, minutes: int) -> Proof:
    span = TimeRange(START + start * HOUR_NS, START + end * HOUR_NS)
    return Proof(span, kind, 20, ASKED_NS, ASKED_NS + minutes * MINUTE_NS)


@pytest.fixture
def covered(fake: FakeRelay) -> FakeRelay:
    page = coverage_pb.CoveragePage(
        **hours(0, 8),
        rows=5,
        empty=[common_pb.TimeRange(**hours(4, 7))],
        evidence=encode_proofs(
            [
                proof(0, 4, ProofKind.CHECKSUM, 0),
                proof(4, 5, ProofKind.ODDS, 9),
                proof(5, 6, ProofKind.ODDS, 10),
                proof(6, 7, ProofKind.TRADE_IDS, 0),
            ]
        ),
        fetched_ns=START,
        committed_ns=START + 10**9,
        retracted=[common_pb.TimeRange(**hours(7, 8))],
    )
    ranges = [
        coverage_pb.CoverageRange(**hours(0, 4), kind=coverage_pb.COVERAGE_KIND_ROWS),
        coverage_pb.CoverageRange(**hours(4, 7), kind=coverage_pb.COVERAGE_KIND_EMPTY),
    ]
    fake.coverage = [
        coverage_pb.StreamCoverageResponse(ranges=ranges),
        coverage_pb.StreamCoverageResponse(pages=[page]),
    ]
    return fake


run = partial(dexorder, "coverage", "--why", TICKER, "1h")


@pytest.mark.parametrize(
    ("hour", "known", "said"),
    [
        (1, "the table has this candle", ["a candle; proven by checksum"]),
        (4, "the exchange has no such candle", ["no candle; 20 equal answers", "; provisional"]),
        (5, "the exchange has no such candle", ["no candle; 20 equal answers"]),
        (6, "the exchange has no such candle", ["no candle; proven by trade ids"]),
        (7, "not known: no page that counts covers it", ["a candle; without a proof; retracted later"]),
    ],
)
def test_one_candle_is_explained(covered: FakeRelay, hour: int, known: str, said: list[str]) -> None:
    result = run(f"2024-01-01T{hour:02}:20")
    assert result.exit_code == 0, result.stderr
    first, page = result.stdout.splitlines()
    assert first.startswith(f"{TICKER} 1h 2024-01-01T{hour:02}:00:00Z: {known}")
    assert all(text in page for text in said)
    assert ("provisional" in page) == (hour == 4)
    assert covered.asked == [
        coverage_pb.StreamCoverageRequest(series=series(TICKER, 3_600), detail=True, **hours(hour, hour + 1))
    ]


def test_as_json(covered: FakeRelay) -> None:
    found = json.loads(run("2024-01-01T04:00", "--json").stdout)
    assert (found["kind"], found["open"]) == ("empty", "2024-01-01T04:00:00Z")
    assert found["pages"][0]["proof"] == {
        "kind": "odds",
        "answers": 20,
        "first_asked": "2024-01-05T04:00:00Z",
        "last_asked": "2024-01-05T04:09:00Z",
        "provisional": True,
    }
