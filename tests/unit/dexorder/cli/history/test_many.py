import asyncio
import json
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dexorder import errors
from dexorder.cli.history import many as many_command
from dexorder.client import many
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.fakes.candle_table import HOUR_NS, HOURS, OTHER, START, TICKER
from tests.fakes.relay_server import FakeRelay, Notify, ended
from tests.integration.dexorder.cli.test_history import broken_off
from tests.rig.command import dexorder

SPAN = ["--since", "2024-01-01", "--until", "2024-01-02T06:00"]


@pytest.fixture
def tickers(fake: FakeRelay, tmp_dir: Path) -> str:
    """File of tickers: two that end OK, and one for each other result."""
    snapshot = fake.ends.snapshot_id
    fake.ends_of[OTHER] = ended(Notify.OK, rows=3, snapshot=snapshot, empty_periods=27)
    missing = [{"start_ns": START, "end_ns": START + HOUR_NS}]
    fake.ends_of["BAD/USDT.SIM"] = ended(Notify.ERROR, error_message="gave up", missing=missing)
    fake.ends_of["OFF/USDT.SIM"] = ended(Notify.OK, rows=5, snapshot=snapshot)
    fake.refuse_tickers["NO/USDT.SIM"] = "ticker: no such symbol"
    file = tmp_dir / "tickers.txt"
    file.write_text(f"# mine\n{TICKER}\nBAD/USDT.SIM\nnonsense\nNO/USDT.SIM  # gone\nOFF/USDT.SIM\n{OTHER}\n")
    return str(file)


run = partial(dexorder, "history")


def test_all_ok_is_exit_code_zero(fake: FakeRelay, tmp_dir: Path) -> None:
    result = run(TICKER, "ETH/USDT.SIM", "1h", *SPAN)
    assert result.exit_code == 0, result.stderr
    first, second = sorted(request.request_id for request in fake.submitted)
    assert re.fullmatch(r"[0-9a-f]{12}-0001", first) and second == first[:-1] + "2"
    assert "2 OK; 60 rows" in result.stdout
    assert "[2/2]" in result.stderr
    assert run("--resume").exit_code == 1  # nothing is left to do


def test_failed_ticker_does_not_stop_the_others(fake: FakeRelay, tickers: str, tmp_dir: Path) -> None:
    result = run("--file", tickers, "1h", *SPAN, "--out", "rows", "--parallel", "2")
    assert result.exit_code == 1
    lines = {line.split()[0]: line.split(maxsplit=5)[2:] for line in result.stdout.splitlines() if ".SIM" in line}
    assert lines[TICKER] == ["OK", "30", "0"] and lines[OTHER] == ["OK", "3", "27"]
    assert lines["BAD/USDT.SIM"][0] == "ERROR" and "gave up; missing [2024-01-01T00:00:00Z" in lines["BAD/USDT.SIM"][3]
    assert lines["NO/USDT.SIM"][0] == "REFUSED" and "no such symbol" in lines["NO/USDT.SIM"][3]
    assert lines["OFF/USDT.SIM"][0] == "UNREAD" and "has 0 rows" in lines["OFF/USDT.SIM"][3]
    assert re.search(r"nonsense +1h +REFUSED", result.stdout)
    assert "2 OK" in result.stdout.splitlines()[-1] and "2 REFUSED" in result.stdout.splitlines()[-1]
    assert list(lines) == [TICKER, "BAD/USDT.SIM", "NO/USDT.SIM", "OFF/USDT.SIM", OTHER]  # as in the file
    names = ["BTC_USDT.SIM.1h.parquet", "ETH_USDT.SIM.1h.parquet"]
    assert sorted(p.name for p in (tmp_dir / "rows").iterdir()) == names
    assert [pq.read_table(tmp_dir / "rows" / name).num_rows for name in names] == [HOURS, 3]


def test_several_periods_are_requests_of_their_own(fake: FakeRelay, tmp_dir: Path) -> None:
    result = run(TICKER, OTHER, "1h", "1d", *SPAN, "--json", "--quiet", "--parallel", "1")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["ticker"], line["period_seconds"]) for line in lines] == [
        (ticker, period) for ticker in (TICKER, OTHER) for period in (3_600, 86_400)
    ]
    days = [request for request in fake.submitted if request.period_seconds == 86_400]
    assert {request.end_time for request in days} == {START + 24 * HOUR_NS}, "each period has its own grid"
    assert "a single period" in run(TICKER, "1h", "1d", *SPAN, "--chart").stderr


def test_a_pattern_stands_for_the_active_markets_that_it_matches(fake: FakeRelay, tmp_dir: Path) -> None:
    names = {TICKER: True, OTHER: True, "LUNA/USDT.SIM": False, "BTC/EUR.SIM": True}
    instruments = [pb.Instrument(ticker=name, active=active) for name, active in names.items()]
    fake.markets["SIM"] = pb.ListInstrumentsResponse(instruments=instruments, fetched_ns=START)
    run("*/USDT.SIM", TICKER, "1h", *SPAN)
    assert sorted(request.ticker for request in fake.submitted) == sorted([TICKER, OTHER])
    for pattern, text in (
        ("*/GBP.SIM", "'*/GBP.SIM' matches none of the 3 active markets of SIM"),
        ("BTC/*", "'BTC/*' names no exchange after its last dot"),
    ):
        refused = run(pattern, "1h", *SPAN)
        assert refused.exit_code == 2 and text in refused.stderr, refused.stderr


@pytest.mark.parametrize("name", ["all.parquet", "all.csv"])
def test_one_file_for_all_tickers(fake: FakeRelay, tickers: str, tmp_dir: Path, name: str) -> None:
    assert run("--file", tickers, "1h", *SPAN, "--out", name).exit_code == 1
    from pyarrow import csv

    rows: pa.Table = pq.read_table(tmp_dir / name) if name.endswith("parquet") else csv.read_csv(tmp_dir / name)
    assert Counter(rows["ticker"].to_pylist()) == {TICKER: HOURS, OTHER: 3}
    assert sorted(p.name for p in tmp_dir.iterdir()) == sorted([name, "tickers.txt"])


def test_the_rows_of_few_tickers_are_read_at_a_time(
    fake: FakeRelay, tmp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_dir / "tickers.txt").write_text("".join(f"X{number}/USDT.SIM\n" for number in range(9)))
    reading, most, write, two = 0, 0, many_command.ManyFollower._write_rows, asyncio.Event()

    async def counted(*arguments: Any) -> None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        if reading == 2:
            two.set()
        await two.wait()
        await asyncio.sleep(0.05)  # for others to come
        with suppress(errors.DexorderError):
            await write(*arguments)
        reading -= 1

    monkeypatch.setattr(many_command, "READ_AT_ONCE", 2)
    monkeypatch.setattr(many_command.ManyFollower, "_write_rows", counted)
    run("--file", "tickers.txt", "1h", *SPAN, "--out", "rows")
    assert most == 2 and not fake.watched


def test_json_has_one_line_per_ticker(fake: FakeRelay, tickers: str) -> None:
    result = dexorder("history", "--file", "-", "1h", *SPAN, "--json", "--quiet", stdin=Path(tickers).read_text())
    assert result.exit_code == 1 and result.stderr == ""
    found = {line["ticker"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert len(found) == 6 and len({tuple(line) for line in found.values()}) == 1
    assert (found[TICKER]["status"], found[TICKER]["row_count"], found[TICKER]["error_message"]) == ("OK", HOURS, None)
    assert found["BAD/USDT.SIM"]["missing"][0]["start_ns"] == START
    assert found["nonsense"]["status"] == "REFUSED" and found["nonsense"]["row_count"] is None


def test_ctrl_c_and_resume(fake: FakeRelay, tmp_dir: Path) -> None:
    names = [TICKER, "B/USDT.SIM", "C/USDT.SIM", "D/USDT.SIM"]
    (tmp_dir / "tickers.txt").write_text("\n".join(names))
    fake.stuck_tickers = set(names[1:])
    out, err = broken_off("[1/4]", "--file", "tickers.txt", "1h", *SPAN, "--parallel", "1", "--client-id", "me")
    # The first is done when its line is printed; with one at a time, at most one more is on its way.
    assert "1 OK; 30 rows" in out
    assert re.search(
        r"1 of 4 tickers are done, (1 continue at the relay, 2|0 continue at the relay, 3) are not submitted", err
    )
    assert not fake.cancelled and len(fake.submitted) <= 2
    (command,) = re.findall(r"continue with: dexorder (history --resume \S+)", err)
    before = [request.request_id for request in fake.submitted]
    (tmp_dir / "tickers.txt").unlink()
    fake.stuck_tickers = set()
    result = dexorder(*command.split())
    assert result.exit_code == 0, result.stderr
    assert "4 OK; 120 rows" in result.stdout
    assert [request.request_id for request in fake.submitted][: len(before)] == before
    assert sorted(request.ticker for request in fake.submitted) == sorted(names)
    assert {request.client_id for request in fake.submitted} == {"me"}


def test_timeout_leaves_the_requests_running(fake: FakeRelay, tmp_dir: Path) -> None:
    fake.stuck = True
    result = run(TICKER, "B/USDT.SIM", "1h", *SPAN, "--timeout", "0.5", "--state", "run.json")
    assert result.exit_code == 1
    assert "0 of 2 tickers are done" in result.stderr
    assert "not all tickers were done within 0.5 s" in result.stderr and (tmp_dir / "run.json").exists()


def test_run_of_which_no_relay_has_accepted_anything_is_not_recorded(fake: FakeRelay, tmp_dir: Path) -> None:
    result = run(TICKER, OTHER, "1h", *SPAN, "--state", "run.json", "--relay", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "nothing listens at 127.0.0.1:1; start the suite" in result.stderr.splitlines()[-1]
    assert "--resume" not in result.stderr and not (tmp_dir / "run.json").exists()


def test_run_waits_if_the_quota_is_used_up(fake: FakeRelay, tmp_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "QUOTA_SECONDS", 0.05)
    fake.no_room = 3
    result = run(TICKER, "B/USDT.SIM", "1h", *SPAN)
    assert result.exit_code == 0, result.stderr
    assert "too many unfinished requests; waiting until a request ends" in result.stderr and not fake.no_room


def test_a_file_without_tickers(fake: FakeRelay, tmp_dir: Path) -> None:
    (tmp_dir / "none.txt").write_text("# nothing\n")
    result = run("--file", "none.txt", "1h", *SPAN)
    assert result.exit_code == 2 and "contains no tickers" in result.stderr
