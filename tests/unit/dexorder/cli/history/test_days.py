"""``coverage --days``: table, calendar, picture, JSON; ``--why`` of trades."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from tests.fakes.candle_table import HOUR_NS, START, TICKER
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder

ROWS, EMPTY = coverage_pb.COVERAGE_KIND_ROWS, coverage_pb.COVERAGE_KIND_EMPTY


def days(start: float, end: float) -> dict[str, Any]:
    return {"start_ns": START + int(start * 24) * HOUR_NS, "end_ns": START + int(end * 24) * HOUR_NS}


@pytest.fixture
def covered(fake: FakeRelay) -> FakeRelay:
    fake.coverage = [
        coverage_pb.StreamCoverageResponse(
            ranges=[
                coverage_pb.CoverageRange(**days(0, 1), kind=ROWS),
                coverage_pb.CoverageRange(**days(1, 1.5), kind=EMPTY, provisional=True),
                coverage_pb.CoverageRange(**days(1.5, 2), kind=EMPTY),
            ]
        )
    ]
    return fake


run = partial(dexorder, "coverage", TICKER, "1h", "--days", "--since", "2024-01-01", "--until", "2024-01-04")


def test_days_are_a_calendar_and_a_table_of_those_that_are_not_proven(covered: FakeRelay) -> None:
    result = run()
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "2024-01  #?." and lines[1] == "# proven  ? provisional  . not asked  ! missing"
    cells = [line.split() for line in lines]
    assert ["2024-01-02", "provisional", "50.0%", "50.0%", "0.0%", "0.0%"] in cells
    assert lines[-1] == f"{TICKER} 1h: 3 days: 1 proven, 1 provisional, 1 not asked"


def test_a_day_that_a_subscription_asked_for_is_missing(covered: FakeRelay) -> None:
    params = ingest.RealtimeParams(include_ohlc=True, ohlc_period_seconds=[3_600])
    covered.subscriptions["a"] = realtime_pb.RealtimeSubscription(
        subscription_id="a", ticker=TICKER, params=params, since_ns=START
    )
    assert run().stdout.splitlines()[0] == "2024-01  #?!"


def test_json_has_a_line_for_each_day(covered: FakeRelay) -> None:
    rows = [json.loads(line) for line in run("--json").stdout.splitlines()]
    assert [(row["day"], row["state"]) for row in rows] == [
        ("2024-01-01", "proven"),
        ("2024-01-02", "provisional"),
        ("2024-01-03", "not asked"),
    ]
    assert rows[1] == {
        "ticker": TICKER,
        "period": "1h",
        "day": "2024-01-02",
        "state": "provisional",
        "proven": 0.5,
        "provisional": 0.5,
        "not_asked": 0.0,
        "missing": 0.0,
    }


def test_the_picture_has_a_square_for_each_day_and_no_markup_of_a_ticker(covered: FakeRelay, tmp_path: Path) -> None:
    file = tmp_path / "days.svg"
    assert run("--picture", str(file)).exit_code == 0
    image = ElementTree.parse(file).getroot()
    titles = [each.text for each in image.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["2024-01-01: proven", "2024-01-02: provisional", "2024-01-03: not asked"]
    refused = run("--picture", str(tmp_path / "nowhere" / "days.svg"))
    assert refused.exit_code == 2 and "nowhere" in refused.stderr


def test_options_that_do_not_go_together_are_refused(fake: FakeRelay, tmp_path: Path) -> None:
    for options in (["--picture", "x.svg"], ["--days", "--detail"], ["--why", "2024-01-01", "--days"]):
        assert dexorder("coverage", TICKER, "1h", *options).exit_code == 2
    assert fake.asked == []


def test_why_tells_of_the_trades_of_a_moment(fake: FakeRelay) -> None:
    fake.coverage = [
        coverage_pb.StreamCoverageResponse(
            ranges=[coverage_pb.CoverageRange(**days(0, 1), kind=ROWS, provisional=True)],
            pages=[
                coverage_pb.CoveragePage(**days(0, 1), rows=6, evidence="page", fetched_ns=START, committed_ns=START)
            ],
        )
    ]
    why = partial(dexorder, "coverage", "--why", TICKER, "trades")
    assert "only one source says that nothing is missing" in why("2024-01-01T12:00:00.5").stdout
    assert "not known: nothing that counts covers this time" in why("2024-01-02").stdout
    assert json.loads(why("2024-01-01T12:00", "--json").stdout)["kind"] == "provisional rows"
