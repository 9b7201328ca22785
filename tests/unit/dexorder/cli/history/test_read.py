import json
from functools import partial
from pathlib import Path

import pytest

from dexorder import Client
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from tests.fakes.candle_table import HOUR_NS, HOURS, START, TICKER
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder

run = partial(dexorder, "read", TICKER, "1h")


def test_stored_rows_are_shown_with_their_coverage_and_nothing_is_requested(fake: FakeRelay, tmp_dir: Path) -> None:
    known = coverage_pb.CoverageRange(start_ns=START, end_ns=START + 24 * HOUR_NS, kind=coverage_pb.COVERAGE_KIND_ROWS)
    fake.coverage = [coverage_pb.StreamCoverageResponse(ranges=[known])]
    result = run("--until", "2024-01-02T06:00", "--rows", "4", "--out", "rows.csv")
    assert result.exit_code == 0, result.stderr
    assert "26 more" in result.stdout
    assert f"{TICKER} 1h: 30 rows in trading.ohlc" in result.stdout and "6 not covered" in result.stdout
    assert len((tmp_dir / "rows.csv").read_text().splitlines()) == HOURS + 1
    found = json.loads(run("--json", "--since", "2024-01-01T20:00", "--until", "2024-01-02T02:00").stdout)
    assert [row["open"] for row in found.pop("rows")] == [120.0, 121.0, 122.0, 123.0, 124.0, 125.0]
    assert found["row_count"] == 6
    assert [(part["since"], part["until"]) for part in found["missing"]] == [
        ("2024-01-02T00:00:00Z", "2024-01-02T02:00:00Z")
    ]
    assert not fake.submitted


def test_series_without_rows(fake: FakeRelay) -> None:
    fake.markets["SIM"] = history_pb.ListInstrumentsResponse(instruments=[history_pb.Instrument(ticker="XRP/USDT.SIM")])
    result = dexorder("read", "XRP/USDT.SIM", "1h")
    assert result.exit_code == 0, result.stderr
    assert "XRP/USDT.SIM 1h: 0 rows in trading.ohlc" in result.stdout and "nothing is covered" in result.stdout


@pytest.mark.parametrize("command", ["read", "coverage"])
def test_a_misspelt_ticker_is_refused(fake: FakeRelay, command: str) -> None:
    fake.markets["SIM"] = history_pb.ListInstrumentsResponse(instruments=[history_pb.Instrument(ticker="XRP/USDT.SIM")])
    result = dexorder(command, "XPR/USDT.SIM", "1h")
    assert (
        result.exit_code == 2 and "'XPR/USDT.SIM' is not a market of SIM (did you mean XRP/USDT.SIM?)" in result.stderr
    )
    fake.coverage = [  # delisted: only what is before the range is stored
        coverage_pb.StreamCoverageResponse(
            ranges=[coverage_pb.CoverageRange(start_ns=1, end_ns=START, kind=coverage_pb.COVERAGE_KIND_ROWS)]
        )
    ]
    assert dexorder(command, "XPR/USDT.SIM", "1h", "--since", "2024-01-01").exit_code == 0
    fake.coverage, fake.markets = [], {}
    result = dexorder(command, "XPR/USDT.SIM", "1h")
    assert result.exit_code == 1 and "venue 'SIM' is unknown" in result.stderr


def test_rows_go_to_stdout_and_everything_else_to_stderr(fake: FakeRelay) -> None:
    for row_format, lines in (("csv", HOURS + 1), ("jsonl", HOURS)):
        result = run("-o", "-", "--format", row_format)
        assert (result.exit_code, len(result.stdout.splitlines())) == (0, lines), result.stderr
        assert f"{TICKER} 1h: 30 rows in trading.ohlc" in result.stderr
    assert json.loads(result.stdout.splitlines()[0])["open"] == 100.0
    result = run("--out", "-", "--json")
    assert result.exit_code == 2 and "both write to stdout" in json.loads(result.stdout)["error"]["message"]


def test_python_clients_read_them_too(fake: FakeRelay) -> None:
    with Client() as client:
        assert client.read_stored(TICKER, "1h")["open"].to_pylist() == [100.0 + n for n in range(HOURS)]
