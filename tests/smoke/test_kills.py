"""The whole chain, with `kill -9` of each part once at a random moment of a request's life.

Each part gets a request of its own, slow enough for the kill to land inside it; the exchange answers some calls badly
meanwhile. The oracle is the simulated exchange's market, computed here, not served.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from services.common.model.time_range import TimeRange
from services.common.model.times import iso
from tests.smoke.harness import Suite, assert_equal, minutes, oracle
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


def start_history(suite: Suite, symbol: str, span: TimeRange) -> subprocess.Popen[str]:
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
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("part", SYMBOLS)
def test_a_killed_part_loses_and_doubles_nothing(suite: Suite, part: str) -> None:
    span = minutes(0, CANDLES)
    symbol = SYMBOLS[part]
    moment = random.uniform(0.0, 3.0)
    command = start_history(suite, symbol, span)
    assert command.stderr is not None
    command.stderr.readline()  # the first line of progress: the request is accepted
    time.sleep(moment)
    assert command.poll() is None, "the request was over before the kill"
    suite.kill(part)
    stdout, stderr = command.communicate(timeout=240)
    assert command.returncode == 0, f"killed {part} after {moment:.2f} s\n{stderr}\n{suite.logs()}"
    answer = json.loads(stdout)
    assert (answer["status"], answer["row_count"]) == ("OK", CANDLES)
    suite.wait_ready()
    assert_equal(suite.rows(f"{symbol}.SIM", 60, span), oracle(symbol, "1m", span))
    record = json.loads(suite.dexorder("requests", "show", answer["request_id"], "--json").stdout)
    assert record["status"] == "OK"
    assert suite.notifications(answer["request_id"]) == ["OK"], "one final status, announced"


def test_the_same_range_again_is_answered_from_the_table(suite: Suite) -> None:
    span = minutes(0, CANDLES)
    before = suite.rows("BTC/USDT.SIM", 60, span)
    command = start_history(suite, "BTC/USDT", span)
    stdout, stderr = command.communicate(timeout=60)
    assert command.returncode == 0, stderr
    assert json.loads(stdout)["row_count"] == CANDLES
    assert suite.rows("BTC/USDT.SIM", 60, span).equals(before)


def test_true_holes_are_verified_empty(suite: Suite) -> None:
    table = recorded()
    span = minutes(0, 2_160)
    stdout, stderr = start_history(suite, "HOLE/USDT", span).communicate(timeout=120)
    answer = json.loads(stdout or "{}")
    assert answer.get("status") == "OK", stderr
    assert (answer["row_count"], answer["empty_periods"]) == (len(table), 2_160 - len(table))
    expected = table.rename_columns(["open_time", *table.column_names[1:]])
    times = pc.multiply(expected["open_time"], 1_000)
    assert_equal(suite.rows("HOLE/USDT.SIM", 60, span), expected.set_column(0, "open_time", times))


def test_the_first_candles_only(suite: Suite) -> None:
    span = minutes(0, 2_160)
    run = suite.dexorder(
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
    assert len(suite.rows("TRX/USDT.SIM", 60, span)) == 10


def test_an_unknown_symbol_ends_in_an_error_that_names_it(suite: Suite) -> None:
    command = start_history(suite, "NOSUCH/USDT", minutes(0, 60))
    _, stderr = command.communicate(timeout=120)
    assert command.returncode == 1
    assert "NOSUCH/USDT" in stderr


def test_garbage_on_the_broker_port_changes_nothing(suite: Suite, tmp_path: Path) -> None:
    import zmq

    counter = "dexorder_relay_frames_dropped_total"
    before = suite.metric("relay", counter)  # a part killed earlier may have left a late frame or two
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 1_000)
        socket.connect(f"tcp://127.0.0.1:{suite.base_port + 5}")
        for frames in (
            [b""],
            [b"\x02", b"\x20"],
            [b"\x01", b"\xff" * 5_000],
            [b"\x01", b"\x21\xff"],
            [b"a", b"b", b"c"],
        ):
            socket.send_multipart(frames)
    command = start_history(suite, "LTC/USDT", minutes(0, 500))
    stdout, stderr = command.communicate(timeout=120)
    assert command.returncode == 0, stderr
    assert json.loads(stdout)["row_count"] == 500
    assert suite.metric("relay", counter) - before == 5, "each is dropped and counted"
