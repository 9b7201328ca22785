import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dexorder import Client
from dexorder.cli.app import app
from dexorder.services.gen.dexorder.relay.v1 import relay_service_pb2 as pb
from tests.fakes.candle_table import HOUR_NS, HOURS, START, TICKER
from tests.fakes.relay_server import FakeRelay


def run(*more: str) -> Result:
    return CliRunner().invoke(app, ["read", TICKER, "1h", *more])


def test_stored_rows_are_shown_with_their_coverage_and_nothing_is_requested(fake: FakeRelay, tmp_dir: Path) -> None:
    known = pb.CoverageRange(start_time=START, end_time=START + 24 * HOUR_NS, kind=pb.COVERAGE_KIND_ROWS)
    fake.coverage = [pb.GetCoverageResponse(ranges=[known])]
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
    result = CliRunner().invoke(app, ["read", "XRP/USDT.SIM", "1h"])
    assert result.exit_code == 0, result.stderr
    assert "XRP/USDT.SIM 1h: 0 rows in trading.ohlc" in result.stdout and "nothing is covered" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["read", "BTCUSDT", "1h"], "ticker 'BTCUSDT'"),
        (["read", TICKER, "7s"], "period '7s' is not one of"),
        (["read", TICKER, "1h", "--json", "--chart"], "--chart can't be combined with --json"),
    ],
)
def test_invalid_arguments(fake: FakeRelay, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_python_clients_read_them_too(fake: FakeRelay) -> None:
    with Client() as client:
        assert client.read_stored(TICKER, "1h")["open"].to_pylist() == [100.0 + n for n in range(HOURS)]
