import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder.demo import run as demo
from dexorder.demo.exchange import FAULTS, DemoComparison, DemoExchange, FaultCounts, Values, compare
from dexorder.errors import SuiteFailed
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import ports_in_use
from dexorder.supervisor.state import PartState, SuiteState, write_state
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


def test_verdict_fails_without_faults_or_with_a_lost_row(capsys: pytest.CaptureFixture[str]) -> None:
    good, lossy = DemoComparison(10, 0, 0, 0, 0), DemoComparison(9, 1, 0, 0, 0)
    demo.show_verdict(FaultCounts(20, {"hole": 1, "html": 3}), good)
    assert capsys.readouterr().err.splitlines() == [
        "the exchange corrupted 4 of its 20 candle responses:",
        "  3 × HTTP 200 with a web page",
        "  1 × ten candles missing in the middle",
        "compared with the exchange's candles: 10 rows, 0 lost, 0 duplicate, 0 unknown, 0 with other values",
    ]
    with pytest.raises(SuiteFailed, match="no response was corrupted"):
        demo.show_verdict(FaultCounts(20, {}), good)
    with pytest.raises(SuiteFailed, match="9 rows, 1 lost"):
        demo.show_verdict(FaultCounts(20, {"hole": 1}), lossy)


async def test_exchange_corrupts_responses_until_faults_are_stopped() -> None:
    span = TimeRange(parse_time("2024-03-01"), parse_time("2024-03-02"))
    async with serve(SimSettings(listen="127.0.0.1:0")) as url:
        exchange = DemoExchange(url.removeprefix("http://"))

        def ask() -> tuple[dict[int, Values], int, FaultCounts, dict[int, Values]]:
            before = exchange.candles(demo.MARKET_ID, demo.PERIOD, span)
            exchange.start_faults()
            failed = 0
            for _ in range(40):
                try:
                    failed += exchange.candles(demo.MARKET_ID, demo.PERIOD, span) != before
                except (SuiteFailed, TypeError, KeyError):
                    failed += 1
            return before, failed, exchange.stop_faults(), exchange.candles(demo.MARKET_ID, demo.PERIOD, span)

        before, failed, done, after = await asyncio.to_thread(ask)
        assert len(before) == 1_440
        assert before == after
        assert 0 < failed <= done.total < done.responses
        assert set(done.faults) <= set(FAULTS)
        with pytest.raises(SuiteFailed, match="answered 404 to /nowhere"):
            await asyncio.to_thread(exchange._call, "GET", "/nowhere")
    with pytest.raises(SuiteFailed, match="does not answer /sim/stats"):
        await asyncio.to_thread(exchange._call, "GET", "/sim/stats")
