import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from dexorder.cli.rows import sinks
from dexorder_common.model.times import iso
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from tests.fakes.candle_table import HOUR_NS, HOURS, START, TICKER, Warehouse
from tests.fakes.relay_server import FakeRelay, Notify, ended
from tests.rig.command import dexorder

ASKED = ["history", TICKER, "1h", "--since", "2024-01-01", "--until", "2024-01-02T06:00"]


run = partial(dexorder, *ASKED)


def run_many(file: str, *more: str) -> Result:
    return dexorder("history", "--file", file, *ASKED[2:], *more)


def test_rows_and_the_notification_are_printed(fake: FakeRelay) -> None:
    result = run()
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert any(line.split() == ["2024-01-01", "00:00:00", "100", "102", "99", "101", "1"] for line in lines)
    assert any("10 more" in line for line in lines)
    name = fake.submitted[0].request_id
    assert lines[-1].startswith(f"HISTORY_READY:{name} OK: 30 rows in trading.ohlc, 0 periods verified empty, snapshot")
    assert "30 of 30 candles" in result.stderr and "candles" not in result.stdout


def test_json_is_one_object_with_the_rows(fake: FakeRelay) -> None:
    fake.ends.empty_periods = 3
    result = run("--json", "--quiet")
    assert result.exit_code == 0 and result.stderr == ""
    found = json.loads(result.stdout)
    assert (found["status"], found["row_count"], found["empty_periods"], found["missing"]) == ("OK", HOURS, 3, [])
    assert found["table"] == "trading.ohlc" and found["snapshot_id"] == str(fake.ends.snapshot_id)
    assert len(found["rows"]) == HOURS
    assert list(found) == [
        "request_id",
        "ticker",
        "period_seconds",
        "status",
        "error_message",
        "row_count",
        "empty_periods",
        "missing",
        "provisional",
        "answered_until",
        "snapshot_id",
        "table",
        "topic",
        "rows",
    ]
    assert found["rows"][0] == {
        "ticker": TICKER,
        "period_seconds": 3600,
        "open_time": "2024-01-01T00:00:00Z",
        "open": 100.0,
        "high": 102.0,
        "low": 99.0,
        "close": 101.0,
        "volume": 1.0,
    }


def test_refresh_is_requested_and_resumed_as_a_refresh(fake: FakeRelay) -> None:
    fake.stuck = True
    assert run("--refresh", "--timeout", "0.2").exit_code == 1
    fake.stuck = False
    result = dexorder("history", "--resume")
    assert result.exit_code == 0, result.stderr
    first, again = fake.asked
    assert first == again and first.request.ticker == TICKER and len(fake.submitted) == 1
    assert run("--refresh", "--limit", "3").exit_code == 2
    assert dexorder("history", "--resume", "--refresh").exit_code == 2


def test_incomplete_rows_are_not_printed(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.ends.row_count = HOURS + 1
    result = run("--json", "--out", "rows.parquet")
    assert result.exit_code == 1 and json.loads(result.stdout)["error"]["kind"] == "HistoryMismatch"
    assert "but 31 were announced" in result.stderr
    assert not list(tmp_dir.iterdir())


def test_an_error_names_the_missing_ranges(fake: FakeRelay) -> None:
    missing = [{"start_ns": START, "end_ns": START + 7_200_000_000_000}]
    fake.ends = ended(Notify.ERROR, missing=missing, error_message="gave up")
    result = run("--quiet", "--json")
    assert result.exit_code == 1
    assert "missing [2024-01-01T00:00:00Z, 2024-01-01T02:00:00Z)" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    found = json.loads(result.stdout)
    assert found["rows"] is None and found["missing"][0]["start_ns"] == START


def test_partial_rows_are_written_and_the_run_fails_all_the_same(
    fake: FakeRelay, warehouse: Warehouse, tmp_dir: Path
) -> None:
    fake.ends = ended(
        Notify.ERROR,
        rows=HOURS - 1,
        snapshot=warehouse.first_snapshot,
        missing=[{"start_ns": START, "end_ns": START + HOUR_NS}],
        error_message="gave up",
    )
    result = run("--quiet", "--json", "--out", "without.csv")
    assert result.exit_code == 1 and json.loads(result.stdout)["rows"] is None
    assert not (tmp_dir / "without.csv").exists()
    result = run("--quiet", "--json", "--partial", "--out", "rows.csv")
    assert result.exit_code == 1 and "ended ERROR: gave up" in result.stderr
    found = json.loads(result.stdout)
    assert (found["status"], len(found["rows"]), found["missing"][0]["start_ns"]) == ("ERROR", HOURS - 1, START)
    assert len((tmp_dir / "rows.csv").read_text().splitlines()) == HOURS
    (tmp_dir / "tickers.txt").write_text(TICKER)
    many = run_many("tickers.txt", "--partial", "--out", "all.csv")
    assert many.exit_code == 1 and "1 ERROR; 29 rows" in many.stdout
    assert len((tmp_dir / "all.csv").read_text().splitlines()) == HOURS


def test_file_format_follows_the_extension(fake: FakeRelay, tmp_dir: Path) -> None:
    assert run("--out", "rows.parquet", "--rows", "0").exit_code == 0
    assert run("--out", "rows.csv", "--plot", "chart.html").exit_code == 0
    assert pq.read_table(tmp_dir / "rows.parquet")["close"].to_pylist()[:2] == [101.0, 102.0]
    with (tmp_dir / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == HOURS and rows[0]["ticker"] == TICKER
    page = (tmp_dir / "chart.html").read_text()
    assert "candlestick" in page and 'src="http' not in page
    assert sorted(p.name for p in tmp_dir.iterdir()) == ["chart.html", "rows.csv", "rows.parquet"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "rows.xlsx"], "--out rows.xlsx: unknown extension; use .parquet or .csv"),
        (["--out", "no/such/rows.csv"], "does not exist"),
        (["--plot", "chart.png"], "unknown extension; use .html"),
        (["--limit", "0"], "limit"),
        (["--until", "2023-01-01"], "until 2023-01-01 is not after since 2024-01-01"),
        (["--since", "soon"], "since 'soon' is not a time; use now, -30d, 2024-01-31"),
    ],
)
def test_invalid_arguments_submit_nothing(fake: FakeRelay, tmp_dir: Path, more: list[str], message: str) -> None:
    result = run(*more)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not fake.submitted


def test_a_refusal_is_one_line(fake: FakeRelay) -> None:
    fake.refuse = "ticker 'BTC/USDT.SIM': unknown venue"
    result = run()
    assert result.exit_code == 2
    assert result.stderr == "dexorder: the relay answered INVALID: ticker 'BTC/USDT.SIM': unknown venue\n"


def test_the_chart_is_drawn(fake: FakeRelay) -> None:
    assert "┃" in run("--chart", "--rows", "0").stdout


def broken_off(at: str, *more: str) -> tuple[str, str]:
    """Start the command as a process, send Ctrl-C when stderr contains ``at``, and return stdout and stderr."""
    # Not by a preexec_fn: with one, Python forks instead of vforking, and gRPC's threads here do not survive a fork.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a run in the background ignores it
    )
    start += "; from dexorder.cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", start, "history", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    said = ""
    for line in child.stderr:
        said += line
        if at in line:
            break
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    return out, said + err


def test_ctrl_c_leaves_the_request_and_resume_follows_it(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.stuck = True
    out, err = broken_off("candles", *ASKED[1:], "--request-id", "mine", "--out", "rows.csv", "--rows", "3")
    assert out == "" and "0 of 30 candles" in err
    assert (
        "request mine continues; look it up with: dexorder requests show mine; "
        "continue with: dexorder history --resume mine" in err
    )
    assert not fake.cancelled and not (tmp_dir / "rows.csv").exists()
    fake.stuck = False
    os.chdir("/")  # the file still goes where it was meant to
    result = dexorder("history", "--resume")
    assert result.exit_code == 0, result.stderr
    assert "HISTORY_READY:mine OK: 30 rows" in result.stdout and "27 more" in result.stdout
    assert len((tmp_dir / "rows.csv").read_text().splitlines()) == HOURS + 1
    assert [r.request_id for r in fake.submitted] == ["mine"]
    again = dexorder("history", "--resume")
    assert again.exit_code == 1 and again.stderr == "dexorder: no unfinished run is recorded\n"


def test_run_is_recorded_while_something_is_left_to_do(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.stuck = True
    result = run("--timeout", "0.2", "--state", "run.json", "--request-id", "mine")
    assert result.exit_code == 1
    assert f"continue with: dexorder history --resume --state {tmp_dir / 'run.json'}" in result.stderr
    fake.stuck = False
    assert dexorder("history", "--resume", "--state", "run.json").exit_code == 0
    assert [r.request_id for r in fake.submitted] == ["mine"] and not (tmp_dir / "run.json").exists()
    fake.refuse = "no such symbol"
    assert run("--state", "run.json").exit_code == 2
    assert not (tmp_dir / "run.json").exists()


def test_full_disk_is_one_sentence_and_the_run_can_be_continued(
    fake: FakeRelay, tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sinks.FileRows, "write", full)
        result = run("--out", "rows.csv", "--request-id", "mine")
    assert result.exit_code == 1 and "can't write: [Errno 28] No space left" in result.stderr
    assert "request mine has ended, but its rows were not written" in result.stderr
    assert "dexorder history --resume mine" in result.stderr and not list(tmp_dir.iterdir())
    assert dexorder("history", "--resume", "mine").exit_code == 0
    assert (tmp_dir / "rows.csv").exists()


def test_rows_that_a_file_does_not_take_go_to_another_file(
    fake: FakeRelay, tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the run can never be written: without another one each `--resume` would fail again."""
    opened = sinks.FileRows.write

    def full(rows: sinks.FileRows, *given: Any) -> None:
        if "rows.csv" in str(rows._target):
            raise OSError(errno.ENOSPC, "No space left on device")
        opened(rows, *given)

    monkeypatch.setattr(sinks.FileRows, "write", full)
    result = run("--out", "rows.csv", "--request-id", "mine")
    for _ in range(2):
        assert result.exit_code == 1
        assert "dexorder history --resume mine, with --out or --plot for another file" in " ".join(
            result.stderr.split()
        )
        result = dexorder("history", "--resume", "mine")
    assert dexorder("history", "--resume", "mine", "--out", "nowhere/x.csv").exit_code == 2
    assert dexorder("history", "--resume", "mine", "--out", "other.jsonl").exit_code == 0
    assert [each.name for each in tmp_dir.iterdir()] == ["other.jsonl"]
    assert json.loads((tmp_dir / "other.jsonl").read_text().splitlines()[0])
    assert [each.request_id for each in fake.submitted] == ["mine"] * len(fake.submitted)
    assert dexorder("history", "--resume", "mine").exit_code == 1  # it is complete, and no longer recorded


def test_folder_that_cannot_be_written_is_refused_before_the_request(
    fake: FakeRelay, tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_dir / "rows.csv").mkdir()
    result = run("--out", "rows.csv")
    assert result.exit_code == 2 and "rows.csv is a folder; name a file in it" in " ".join(result.stderr.split())
    monkeypatch.setattr("dexorder.cli.rows.options.os.access", lambda *_: False)
    for option, file in (("--out", "x.csv"), ("--plot", "x.html")):
        result = run(option, file)
        assert result.exit_code == 2 and "can't be written; choose another one" in " ".join(result.stderr.split())
    assert not fake.submitted


def test_run_that_no_relay_has_accepted_is_not_recorded(tmp_dir: Path) -> None:
    result = dexorder(*ASKED, "--relay", "127.0.0.1:1", "--state", "run.json")
    assert result.exit_code == 1 and "--resume" not in result.stderr
    assert not (tmp_dir / "run.json").exists()


def test_run_that_was_accepted_stays_recorded_while_the_relay_is_away(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.stuck = True
    assert run("--timeout", "0.2", "--state", "run.json").exit_code == 1
    for _ in range(2):
        result = dexorder("history", "--resume", "--state", "run.json", "--relay", "127.0.0.1:1")
        assert result.exit_code == 1 and "--resume --state" in result.stderr
    fake.stuck = False
    assert dexorder("history", "--resume", "--state", "run.json", "--relay", fake.address).exit_code == 0


def test_missing_plotly_is_said_before_anything_is_fetched(
    fake: FakeRelay, tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dexorder.cli.rows.options.find_spec", lambda name: None)
    result = run("--plot", "chart.html")
    assert result.exit_code == 1 and ".whl[chart]'" in result.stderr
    assert not fake.submitted


def test_unwritable_record_fails_the_run_only_with_state(fake: FakeRelay, tmp_dir: Path) -> None:
    (tmp_dir / "file").touch()
    refused = run("--state", "file/run.json")
    assert refused.exit_code == 1 and "can't be written" in refused.stderr and not fake.submitted
    os.environ["XDG_STATE_HOME"] = str(tmp_dir / "file")  # put back by the fixture
    result = run()
    assert result.exit_code == 0 and "the run can't be recorded" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TICKER], "TICKER and PERIOD are required"),
        ([TICKER, "1h", "--until", "2024-01-01"], "--since is required"),
        (["--resume", "--json"], "--resume continues the run as it was started"),
        (["--resume", "a", "b"], "--resume continues the run as it was started"),
        (["--file", "nothing.txt", "1h"], "--file nothing.txt can't be read"),
        ([TICKER, "ETH/USDT.SIM", "1h", *ASKED[3:], "--chart"], "require a single ticker"),
        (["1m", "1h", *ASKED[3:]], "1m and 1h are periods; write the tickers before them"),
        (["1m", TICKER, "1h", *ASKED[3:]], "'BTC/USDT.SIM' comes after a period"),
        (["1h", TICKER, *ASKED[3:]], "'BTC/USDT.SIM' comes after a period"),
        ([TICKER, "1h", "1x", *ASKED[3:]], "period '1x' is not one of"),
        ([TICKER, "ETH/USDT.SIM", *ASKED[3:]], "a period is missing after ETH/USDT.SIM, for example 1h"),
        ([*ASKED[1:], "--plot", "nowhere/chart.html"], "nowhere does not exist; create it first"),
    ],
)
def test_contradicting_or_missing_arguments(fake: FakeRelay, tmp_dir: Path, arguments: list[str], message: str) -> None:
    result = dexorder("history", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not fake.submitted


LISTED = history_pb.ListInstrumentsResponse(instruments=[history_pb.Instrument(ticker=TICKER)])
ANOTHER = "BCT/USDT.SIM"


def test_ticker_that_the_exchange_does_not_list_is_refused_before_it_is_requested(
    fake: FakeRelay, tmp_dir: Path
) -> None:
    fake.markets["SIM"] = LISTED
    result = dexorder("history", ANOTHER, *ASKED[2:])
    assert result.exit_code == 2
    assert f"{ANOTHER!r} is not a market of SIM (did you mean {TICKER}?), and no data of it is stored" in result.stderr
    assert not fake.submitted
    assert "no unfinished run" in dexorder("history", "--resume").stderr
    assert run().exit_code == 0


def test_unlisted_ticker_of_many_is_refused_and_the_others_are_fetched(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.markets["SIM"] = LISTED
    (tmp_dir / "tickers").write_text(f"{TICKER}\n{ANOTHER}\n")
    result = run_many("tickers", "--json", "--quiet")
    assert result.exit_code == 1
    found = {each["ticker"]: each["status"] for each in map(json.loads, result.stdout.splitlines())}
    assert found == {TICKER: "OK", ANOTHER: "REFUSED"}
    assert [each.ticker for each in fake.submitted] == [TICKER]


def test_run_of_a_market_that_was_delisted_meanwhile_is_resumed(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.stuck = True
    assert run("--timeout", "0.2", "--request-id", "mine").exit_code == 1
    fake.stuck = False
    fake.markets["SIM"] = history_pb.ListInstrumentsResponse()
    assert dexorder("history", ANOTHER, *ASKED[2:]).exit_code == 2  # a new run is refused
    result = dexorder("history", "--resume", "mine")
    assert result.exit_code == 0, result.stderr
    assert [each.request_id for each in fake.submitted] == ["mine"]


def test_end_in_the_future_is_the_last_closed_candle(fake: FakeRelay) -> None:
    fake.ends = ended(Notify.ERROR, error_message="gave up")
    result = dexorder("history", TICKER, "1d", "--since", "-3d", "--until", "2090-01-01", "--json")
    assert "--until 2090-01-01 is in the future: the answer ends at " in result.stderr
    (request,) = fake.submitted
    day_ns = 24 * HOUR_NS
    assert request.end_time == time.time_ns() // day_ns * day_ns
    assert request.end_time - request.start_time == 3 * day_ns
    assert json.loads(result.stdout)["answered_until"] == iso(request.end_time)


def test_range_in_the_future_is_refused(fake: FakeRelay) -> None:
    result = dexorder("history", TICKER, "1h", "--since", "2090-01-01", "--until", "2090-01-02")
    assert result.exit_code == 2 and "no 1h candle from there on is closed yet" in result.stderr
    result = dexorder("history", TICKER, "1h", "--since", "2090-01-01")
    assert (result.exit_code, result.stderr) == (2, "dexorder: since 2090-01-01 is in the future\n")
    assert not fake.submitted
