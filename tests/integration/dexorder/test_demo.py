import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder.cli.terminal import output
from dexorder.demo import kills, peers, run
from dexorder.demo import suite as demo
from dexorder.demo.exchange import FAULTS, DemoComparison, DemoExchange, FaultCounts, Values, compare
from dexorder.demo.verdict import Column, check, verdict_table
from dexorder.errors import SuiteFailed
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import ports_in_use
from dexorder.supervisor.state import PartState, SuiteState, write_state
from dexorder_common.model.history import Progress, RequestState
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import parse_time
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.server import serve


def test_marked_processes_are_found_until_they_end() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, demo.MARKER: "x1"},
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert demo.processes_marked("x1") == [child.pid]
    child.communicate(b"\n")
    assert demo.processes_marked("x1") == []


def test_base_port_block_is_free() -> None:
    assert ports_in_use(SuiteOptions(Path(), Ports.from_base(demo.free_base_port()))) == []


def test_failing_part_ends_the_wait_and_shows_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SuiteOptions(tmp_path, only=("relay", "sim"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as suite:
        ready, failing = PartState("a", "b", 1, "ready"), PartState("a", "b", None, "failing", 5, "ended")
        write_state(tmp_path, SuiteState(suite.pid, "now", "r", {"relay": ready, "sim": ready}))
        demo.wait_ready(suite, options)
        write_state(tmp_path, SuiteState(suite.pid, "now", "r", {"relay": ready, "sim": failing}))
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "sim.log").write_text("first\nwhy it died\n")
        with pytest.raises(SuiteFailed, match="sim can't run: ended"):
            demo.wait_ready(suite, options)
        assert "why it died" in capsys.readouterr().err
        suite.kill()
        suite.wait()
        with pytest.raises(SuiteFailed, match="ended with exit code -9"):
            demo.wait_ready(suite, options)


A, B, C = (1.0, 3.0, 1.0, 2.0, 5.0), (2.0, 4.0, 2.0, 3.0, 6.0), (3.0, 5.0, 3.0, 4.0, 7.0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, A), (2, B)], DemoComparison(2, 0, 0, 0, 0)),
        ([(2, B)], DemoComparison(1, 1, 0, 0, 0)),
        ([], DemoComparison(0, 2, 0, 0, 0)),
        ([(1, A), (2, B), (2, B)], DemoComparison(3, 0, 1, 0, 0)),
        ([(1, A), (2, B), (3, C)], DemoComparison(3, 0, 0, 1, 0)),
        ([(1, A), (2, (2.0, 4.0, 2.0, 3.0, 6.0000001))], DemoComparison(2, 0, 0, 0, 1)),
        ([(2, A), (3, B)], DemoComparison(2, 1, 0, 1, 1)),
    ],
)
def test_rows_are_compared_exactly(rows: list[tuple[int, Values]], expected: DemoComparison) -> None:
    assert compare(rows, {1: A, 2: B}) == expected
    assert expected.equal == (rows == [(1, A), (2, B)])


def test_verdict_fails_without_faults_or_with_a_lost_row() -> None:
    good, lossy = DemoComparison(10, 0, 0, 0, 0), DemoComparison(9, 1, 0, 0, 0)
    check(FaultCounts(20, {"hole": 1, "html": 3}), good)
    with pytest.raises(SuiteFailed, match="no response was corrupted"):
        check(FaultCounts(20, {}), good)
    with pytest.raises(SuiteFailed, match="9 rows, 1 lost"):
        check(FaultCounts(20, {"hole": 1}), lossy)


def test_verdict_shows_each_way_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [
        Column("a loop", "raises NetworkError", DemoComparison(1_000, 2_000, 3, 0, 4)),
        Column("dexorder", "OK", DemoComparison(3_000, 0, 0, 0, 0)),
    ]
    output.stdout().print(verdict_table(columns, 3_000))
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines if "─" not in line[0]] == [
        ["a loop", "dexorder"],
        ["the caller is told", "raises NetworkError", "OK"],
        ["of 3,000 candles lost", "2,000", "0"],
        ["twice", "3", "0"],
        ["wrong, null or of no candle", "4", "0"],
    ]


HOURS = TimeRange(parse_time("2024-03-01"), parse_time("2024-03-03"))


@pytest.mark.parametrize(
    ("faults", "lost"),
    [
        ([], (0, 0)),
        # The loop takes an empty list for the end of the data; paginate goes on with the next page.
        ([{"kind": "empty", "every": 2}], (1_880, 1_000)),
        ([{"kind": "http_502", "every": 2}], (0, 0)),
    ],
)
async def test_ways_by_ccxt_alone_run_side_by_side(faults: list[dict[str, object]], lost: tuple[int, int]) -> None:
    async with serve(SimSettings(listen="127.0.0.1:0")) as url:
        exchange = DemoExchange(url.removeprefix("http://"))

        def fetch() -> list[DemoComparison]:
            truth = exchange.candles("BTCUSDT", "1m", HOURS)
            found: list[DemoComparison] = []
            for way in (peers.retrying_loop, peers.paginate):
                exchange._call("POST", "/sim/faults", faults)
                (end,) = peers.Peers(exchange.address, "BTC/USDT", HOURS).start(way).result()
                exchange.stop_faults()
                assert end.told == "nothing"
                found.append(compare(end.rows, truth))
            return found

        found = await asyncio.to_thread(fetch)
    assert tuple(each.lost for each in found) == lost


def test_error_of_ccxt_is_what_the_caller_is_told() -> None:
    (end,) = peers.Peers("127.0.0.1:1", "BTC/USDT", HOURS).start(peers.retrying_loop).result()
    assert end.rows == []
    assert end.told == "raises ExchangeNotAvailable"


def _progress(settled: int) -> Progress:
    return Progress(RequestState.RUNNING, 100, settled, settled, 10, settled // 10, 1, 0, 1)


def test_parts_are_killed_in_order_at_their_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SuiteOptions(tmp_path)
    parts = {name: PartState("a", "b", pid, "ready") for name, pid in (("spark", 11), ("ingestor", 12))}
    write_state(tmp_path, SuiteState(1, "now", "r", parts))
    sent: list[tuple[int, int]] = []
    killer = kills.Killer(options, "r", lambda pid, number: sent.append((pid, number)))
    for settled, killed in ((0, []), (4, []), (5, [11]), (29, [11]), (30, [11, 12]), (100, [11, 12])):
        killer.note(_progress(settled))
        assert sent == [(pid, signal.SIGKILL) for pid in killed]
    assert "kill -9 11  # spark" in capsys.readouterr().err


def test_request_that_ends_before_the_kills_demonstrates_nothing(tmp_path: Path) -> None:
    killer = kills.Killer(SuiteOptions(tmp_path), "r", lambda pid, number: None)
    killer.note(_progress(20))
    with pytest.raises(SuiteFailed, match="the request ended before ingestor was killed"):
        killer.finish()


async def test_exchange_corrupts_responses_until_faults_are_stopped() -> None:
    span = TimeRange(parse_time("2024-03-01"), parse_time("2024-03-02"))
    async with serve(SimSettings(listen="127.0.0.1:0")) as url:
        exchange = DemoExchange(url.removeprefix("http://"))

        def ask() -> tuple[dict[int, Values], int, FaultCounts, dict[int, Values]]:
            before = exchange.candles(run.MARKET_ID, run.PERIOD, span)
            exchange.start_faults()
            failed = 0
            for _ in range(40):
                try:
                    failed += exchange.candles(run.MARKET_ID, run.PERIOD, span) != before
                except (SuiteFailed, TypeError, KeyError):
                    failed += 1
            return before, failed, exchange.stop_faults(), exchange.candles(run.MARKET_ID, run.PERIOD, span)

        before, failed, done, after = await asyncio.to_thread(ask)
        assert len(before) == 24 * 42
        assert before == after
        assert 0 < failed <= done.total < done.responses
        assert set(done.faults) <= set(FAULTS)
        with pytest.raises(SuiteFailed, match="answered 404 to /nowhere"):
            await asyncio.to_thread(exchange._call, "GET", "/nowhere")
    with pytest.raises(SuiteFailed, match="does not answer /sim/stats"):
        await asyncio.to_thread(exchange._call, "GET", "/sim/stats")
