import json
from functools import partial
from typing import Any

import pytest

from dexorder_common.model.coverage import Coverage, CoverageKind, CoverageRange
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common_pb
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from tests.fakes.candle_table import HOUR_NS, START, TICKER
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder
from tests.series_messages import series

ROWS, EMPTY = coverage_pb.COVERAGE_KIND_ROWS, coverage_pb.COVERAGE_KIND_EMPTY


def hours(start: int, end: int) -> dict[str, Any]:
    return {"start_ns": START + start * HOUR_NS, "end_ns": START + end * HOUR_NS}


@pytest.fixture
def covered(fake: FakeRelay) -> FakeRelay:
    fake.coverage = [
        coverage_pb.StreamCoverageResponse(ranges=[coverage_pb.CoverageRange(**hours(0, 6), kind=ROWS)]),
        coverage_pb.StreamCoverageResponse(ranges=[coverage_pb.CoverageRange(**hours(8, 10), kind=EMPTY)]),
        coverage_pb.StreamCoverageResponse(
            ranges=[coverage_pb.CoverageRange(**hours(10, 11), kind=EMPTY, provisional=True)]
        ),
        coverage_pb.StreamCoverageResponse(
            pages=[
                coverage_pb.CoveragePage(
                    **hours(0, 6),
                    rows=6,
                    evidence="page",
                    fetched_ns=START,
                    committed_ns=START + 10**9,
                    retracted=[common_pb.TimeRange(**hours(2, 3))],
                )
            ]
        ),
    ]
    return fake


run = partial(dexorder, "coverage", TICKER, "1h")


def test_ranges_holes_and_shares_are_printed_as_a_table(covered: FakeRelay) -> None:
    result = run("--detail")
    assert result.exit_code == 0, result.stderr
    cells = [line.split() for line in result.stdout.splitlines()]
    assert ["2024-01-01T00:00:00Z", "2024-01-01T06:00:00Z", "6", "rows"] in cells
    assert ["2024-01-01T06:00:00Z", "2024-01-01T08:00:00Z", "2", "not", "covered"] in cells
    assert ["2024-01-01T08:00:00Z", "2024-01-01T10:00:00Z", "2", "verified", "empty"] in cells
    assert ["2024-01-01T10:00:00Z", "2024-01-01T11:00:00Z", "1", "provisionally", "empty"] in cells
    assert any(line[4:5] == ["page"] and "[2024-01-01T02:00:00Z," in line for line in cells)
    assert result.stdout.splitlines()[-1] == (
        f"{TICKER} 1h: 11 periods: 6 rows (54.5%), 2 verified empty (18.2%), 1 provisionally empty (9.1%), "
        "2 not covered (18.2%)"
    )
    assert covered.asked == [coverage_pb.StreamCoverageRequest(series=series(TICKER, 3_600), detail=True)]


def test_json_has_one_line_per_range(covered: FakeRelay) -> None:
    result = run("--since", "2024-01-01T00:30", "--until", "2024-01-01T12:00", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["kind"], line.get("periods")) for line in lines] == [
        ("rows", 6),
        ("missing", 2),
        ("empty", 2),
        ("provisional", 1),
        ("missing", 1),
        ("page", None),
    ]
    assert lines[0]["start_ns"] == START and lines[0]["until"] == "2024-01-01T06:00:00Z"
    asked = coverage_pb.StreamCoverageRequest(series=series(TICKER, 3_600), **hours(0, 12))
    assert covered.asked == [asked], "ends are floored to the grid"


def test_series_without_coverage(fake: FakeRelay) -> None:
    fake.coverage = [coverage_pb.StreamCoverageResponse()]
    fake.markets["SIM"] = history_pb.ListInstrumentsResponse(instruments=[history_pb.Instrument(ticker=TICKER)])
    fake.unavailable = 1
    assert run().stdout == f"{TICKER} 1h: nothing is covered\n"
    assert run("--json").stdout == ""


def test_holes_are_between_the_ranges_or_out_to_the_given_ends() -> None:
    rows = CoverageRange(TimeRange(120, 180), CoverageKind.ROWS)
    found = Coverage("A.B", 60, (rows,))
    assert found.whole() == [rows]
    assert found.whole(60, 240) == [
        CoverageRange(TimeRange(60, 120), CoverageKind.MISSING),
        rows,
        CoverageRange(TimeRange(180, 240), CoverageKind.MISSING),
    ]
    assert found.whole(None, 240) == [rows, CoverageRange(TimeRange(180, 240), CoverageKind.MISSING)]
    nothing = Coverage("A.B", 60, ())
    assert nothing.whole() == nothing.whole(60) == []
    assert nothing.whole(60, 120) == [CoverageRange(TimeRange(60, 120), CoverageKind.MISSING)]


def test_trades_are_complete_between_times(fake: FakeRelay) -> None:
    fake.coverage = [coverage_pb.StreamCoverageResponse(ranges=[coverage_pb.CoverageRange(**hours(0, 1), kind=ROWS)])]
    result = dexorder("coverage", TICKER, "trades", "--since", "2024-01-01", "--until", "2024-01-01T02:00")
    cells = [line.split() for line in result.stdout.splitlines()]
    assert ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z", "complete"] in cells
    assert ["2024-01-01T01:00:00Z", "2024-01-01T02:00:00Z", "not", "covered"] in cells
    assert fake.asked == [coverage_pb.StreamCoverageRequest(series=series(TICKER, 0), **hours(0, 2))]
