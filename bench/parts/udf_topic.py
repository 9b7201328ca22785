"""Rows a second of a UDF's sender into a topic, through a gateway and a broker on this machine.

Sender and gateway are threads of this process, so a rate is that of less than one core for both.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from dexorder_common.model.udf import UdfOutput
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sinks import MOST_ROWS, Sinks
from dexorder_udf.points import Point
from tests.gateway_thread import GatewayThread
from tests.rig.kafka import RunningKafka, create_topic

_TICKERS = 20


def made_rows(count: int) -> list[dict[str, Any]]:
    """Return rows of some groups by turns."""
    points = [
        Point(n * 1_000, {"ticker": f"COIN{n % _TICKERS}/USDT.SIM"}, {"mean": n / 7, "n": n}, "ohlc", ("ticker",))
        for n in range(count)
    ]
    return rows_of(points, 0)


def measure(count: int) -> tuple[float, float]:
    """Send rows; return rows a second, and CPU in microseconds for each."""
    with tempfile.TemporaryDirectory() as folder:
        broker = RunningKafka(Path(folder))
        try:
            topic = create_topic(broker.bootstrap, 4)
            gateway = GatewayThread(kafka=broker.bootstrap)
            gateway.wait_ready()
            sinks = Sinks("bench", UdfOutput(topic=topic), gateway.address)
            rows = made_rows(count)
            sinks.send(rows[:MOST_ROWS])
            started, cpu = time.perf_counter(), time.process_time()
            for first in range(0, count, MOST_ROWS):
                refused = sinks.send(rows[first : first + MOST_ROWS])
                assert not refused
            took, used = time.perf_counter() - started, time.process_time() - cpu
            sinks.close()
            gateway.stop()
        finally:
            broker.stop()
    return count / took, used / count * 1e6
