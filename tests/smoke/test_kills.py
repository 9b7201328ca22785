"""The whole chain while each part is killed once, at a random delay_s during a request.

Each part has its own request, which is slow enough for the kill to happen during it; the exchange has faults meanwhile.
The oracle is the simulated exchange's market, computed in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso
from tests.rig.oracle import assert_equal, minutes, oracle
from tests.rig.suite import Suite
from tests.seeds import seeded
from tests.smoke.recorded import recorded

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(900)]

CANDLES = 12_000
SYMBOLS = {
    "relay": "BTC/USDT",
    "ingestor": "ETH/USDT",
    "gateway": "SOL/USDT",
    "udsource": "XRP/USDT",
    "spark": "ADA/USDT",
}


def start_history(suite: Suite, symbol: str, span: TimeRange, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dexorder",
            "history",
            f"{symbol}.SIM",
            "1m",
            "--since",
            iso(span.start_ns),
            "--until",
            iso(span.end_ns),
            "--json",
            "--relay",
            suite.relay,
        ],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("part", SYMBOLS)
def test_killed_part_causes_no_loss_and_no_duplicate(smoke_suite: Suite, part: str) -> None:
    span = minutes(0, CANDLES)
    symbol = SYMBOLS[part]
    delay_s = seeded(f"kill of {part}").uniform(0.0, 3.0)
    command = start_history(smoke_suite, symbol, span)
    assert command.stderr is not None
    command.stderr.readline()  # the first line of progress: the request is accepted
    time.sleep(delay_s)
    assert command.poll() is None, "the request had ended before the kill"
    smoke_suite.kill(part)
    stdout, stderr = command.communicate(timeout=240)
    assert command.returncode == 0, f"killed {part} after {delay_s:.2f} s\n{stderr}\n{smoke_suite.logs()}"
    answer = json.loads(stdout)
    assert (answer["status"], answer["row_count"]) == ("OK", CANDLES)
    smoke_suite.wait_ready()
    assert_equal(smoke_suite.rows(f"{symbol}.SIM", 60, span), oracle(symbol, "1m", span))
    record = json.loads(smoke_suite.dexorder("requests", "show", answer["request_id"], "--json").stdout)
    assert record["status"] == "OK"
    assert smoke_suite.notifications(answer["request_id"]) == ["OK"], "one final status is announced"


def test_the_same_range_again_is_answered_from_the_table(smoke_suite: Suite) -> None:
    span = minutes(0, 2_160)
    tables = []
    for _ in range(2):
        command = start_history(smoke_suite, "LINK/USDT", span)
        stdout, stderr = command.communicate(timeout=60)
        assert command.returncode == 0, stderr
        assert json.loads(stdout)["row_count"] == 2_160
        tables.append(smoke_suite.rows("LINK/USDT.SIM", 60, span))
    assert tables[0].equals(tables[1])


def test_true_holes_are_verified_empty(smoke_suite: Suite) -> None:
    table = recorded()
    span = minutes(0, 2_160)
    stdout, stderr = start_history(smoke_suite, "HOLE/USDT", span).communicate(timeout=120)
    answer = json.loads(stdout or "{}")
    assert answer.get("status") == "OK", stderr
    assert (answer["row_count"], answer["empty_periods"]) == (len(table), 2_160 - len(table))
    expected = table.rename_columns(["open_time", *table.column_names[1:]])
    times = pc.multiply(expected["open_time"], 1_000)
    assert_equal(smoke_suite.rows("HOLE/USDT.SIM", 60, span), expected.set_column(0, "open_time", times))


def test_limit_returns_the_first_candles_only(smoke_suite: Suite) -> None:
    span = minutes(0, 2_160)
    run = smoke_suite.dexorder(
        "history",
        "TRX/USDT.SIM",
        "1m",
        "--since",
        iso(span.start_ns),
        "--until",
        iso(span.end_ns),
        "--limit",
        "10",
        "--json",
    )
    assert json.loads(run.stdout)["row_count"] == 10, run.stderr
    assert len(smoke_suite.rows("TRX/USDT.SIM", 60, span)) == 10


def test_unknown_symbol_is_refused_by_name(smoke_suite: Suite) -> None:
    command = start_history(smoke_suite, "NOSUCH/USDT", minutes(0, 60))
    _, stderr = command.communicate(timeout=120)
    assert command.returncode == 2
    assert "'NOSUCH/USDT.SIM' is not a market of SIM" in stderr


def test_invalid_frames_on_the_broker_port_are_dropped_and_counted(smoke_suite: Suite, tmp_path: Path) -> None:
    import zmq

    counter = "dexorder_relay_frames_dropped_total"
    before = smoke_suite.metric("relay", counter)  # a part that was killed before may have left late frames
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 1_000)
        socket.connect(f"tcp://127.0.0.1:{smoke_suite.base_port + 5}")
        for frames in (
            [b""],
            [b"\x02", b"\x20"],
            [b"\x01", b"\xff" * 5_000],
            [b"\x01", b"\x21\xff"],
            [b"a", b"b", b"c"],
        ):
            socket.send_multipart(frames)
    command = start_history(smoke_suite, "LTC/USDT", minutes(0, 500))
    stdout, stderr = command.communicate(timeout=120)
    assert command.returncode == 0, stderr
    assert json.loads(stdout)["row_count"] == 500
    assert smoke_suite.metric("relay", counter) - before == 5, "each is dropped and counted"
