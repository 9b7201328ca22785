"""`kill -9` of the Spark driver and of its UDF in a stream of numbered trades, through the whole suite.

The simulated exchange sends trades of a file over its sockets, with faults of messages. Ingestor, gateway, Kafka,
udsource and Spark bring them to the UDF, whose output goes to its table, and through the gateway to a topic and to a
user's events. The expected rows are computed from the file: the n-th one has the count n and the sum of the first n
prices, so a trade that is lost, doubled or out of order changes all rows after it.

DEXORDER_SOAK_UDF_DRIVER_KILLS=20 DEXORDER_SOAK_UDF_KILLS=100
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import udf_table
from dexorder_common.model.times import from_datetime
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as event_pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as event_rpc
from tests.gateway_thread import records
from tests.nightly import trade_replay
from tests.nightly.trade_replay import Recording, Replay, write_trades
from tests.nightly.trade_replay import Row as Trade
from tests.paths import ROOT
from tests.rig.kafka import create_topic
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import Suite

DRIVER_KILLS = int(os.environ.get("DEXORDER_SOAK_UDF_DRIVER_KILLS", "20"))
UDF_KILLS = int(os.environ.get("DEXORDER_SOAK_UDF_KILLS", "100"))
SYMBOL, TOPIC, USER, UDF = "XMR/USD", "udf-numbers", "udf-user", "numbers"
AGENT = "tests.fakes.udf_agent"
SPEED, LAST_SPEED = 60.0, 720.0
HOURS = 3.0 * DRIVER_KILLS
"""The replay has three minutes for each kill of the driver, and the rest goes by at the last speed."""
_PATIENCE_SECONDS = 300.0
pytestmark = [pytest.mark.soak, pytest.mark.timeout(DRIVER_KILLS * 150 + 1_200)]


class Output(NamedTuple):
    """Row of the UDF as table and topic have it."""

    sequence: int
    time_ns: int
    number: int
    total: float


def udfs(folder: Path) -> Path:
    """Write the file of the Spark host."""
    entry = {
        "prog": sys.executable,
        "args": ["-m", AGENT, "sum"],
        "env": {"PYTHONPATH": str(ROOT)},
        "input": {"table": "ticks", "tickers": [f"{SYMBOL}.SIM"], "since": "earliest"},
        "output": {"topic": TOPIC, "user_id": USER},
    }
    path = folder / "udfs.yaml"
    path.write_text(json.dumps({"udfs": {UDF: entry}}))  # JSON is YAML
    return path


def expected(trades: Sequence[Trade]) -> list[Output]:
    total, rows = 0.0, []
    for number, trade in enumerate(trades):
        total += trade.price
        rows.append(Output(number, trade.time_ns, number + 1, total))
    return rows


def table_rows(suite: Suite) -> list[Output]:
    table = udf_table(UDF).load(CatalogSettings.local(suite.directory).load())
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist() if table else []
    return sorted(
        Output(row["sequence"], from_datetime(row["time"]), dict(row["ints"])["count"], dict(row["doubles"])["sum"])
        for row in rows
    )


def topic_rows(suite: Suite) -> list[Output]:
    """Return the rows that the gateway has written, in the order of the log, copies included."""
    found = [json.loads(each.value()) for each in records(suite.address("kafka"), TOPIC)]
    return [Output(row["sequence"], 0, row["fields"]["count"], row["fields"]["sum"]) for row in found]


def user_events(suite: Suite) -> dict[str, str]:
    """Return the condition of each event that the gateway has accepted for the user, by its id."""
    found: dict[str, str] = {}
    with grpc.insecure_channel(suite.address("gateway")) as channel:
        list_events = event_rpc.EventLogServiceStub(channel).ListEvents
        token, more = "", True
        while more:
            answer = list_events(
                event_pb.ListEventsRequest(user_id=USER, page_size=1_000, page_token=token), timeout=30
            )
            for record in answer.records:
                assert record.event.event_id not in found, f"{record.event.event_id} is in the log twice"
                found[record.event.event_id] = json.loads(record.event.payload)["condition"]
            token = answer.next_page_token
            more = bool(token)
    return found


def udf_pids(driver: int) -> list[int]:
    """Return the ids of the UDF's processes that are children of the driver."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == driver and AGENT.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


class Kills:
    """Kills of the UDF, and then of the driver, at random moments of its work."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._source = random.Random(24)
        self.driver = self.udf = 0
        self.rows: list[int] = []

    def round(self, udf_kills: int) -> None:
        """Kill the UDF so many times, and the driver once; each works again before the next kill."""
        driver = self._suite.pid("spark")
        for _ in range(udf_kills):
            pid = self._working(driver)
            os.kill(pid, signal.SIGKILL)
            self.udf += 1
            until(lambda pid=pid: pid not in udf_pids(driver), _PATIENCE_SECONDS, self._suite.logs)  # type: ignore[misc]
        self._working(driver)
        os.kill(driver, signal.SIGKILL)
        self.driver += 1
        # Not until the part is ready: a UDF works beside the queries, which take longer to start.
        until(lambda: self._suite.pid("spark") != driver, _PATIENCE_SECONDS, self._suite.logs)
        self.rows.append(len(table_rows(self._suite)))
        print(f"{self.driver} kills of the driver, {self.udf} of the UDF, {self.rows[-1]} rows", flush=True)

    def _working(self, driver: int) -> int:
        """Wait until the UDF works, and then some time; return its process."""
        until(lambda: bool(udf_pids(driver)), _PATIENCE_SECONDS, self._suite.logs)
        (pid,) = udf_pids(driver)
        time.sleep(self._source.uniform(0.0, 1.5))
        return pid


def test_kills_of_driver_and_udf_lose_and_double_no_row(tmp_path: Path) -> None:
    recording = Recording(write_trades(tmp_path / "trades.parquet", SYMBOL, hours=HOURS), SYMBOL)
    goal, began_s = expected(recording.trades()), time.monotonic()
    environment = {"DEXORDER_SPARK_UDFS": str(udfs(tmp_path))}
    with trade_replay.replaying(tmp_path / "suite", [recording], SPEED, **environment) as replay:
        suite = replay.suite
        create_topic(suite.address("kafka"), 1, TOPIC)
        replay.start()
        kills = Kills(suite)
        for number in range(DRIVER_KILLS):
            kills.round(UDF_KILLS * (number + 1) // DRIVER_KILLS - UDF_KILLS * number // DRIVER_KILLS)
        assert kills.rows[0] > 0 and kills.rows[-1] < len(goal), f"not all kills were in the stream: {kills.rows}"
        settle(replay, len(goal))
        found, sent, events = table_rows(suite), topic_rows(suite), user_events(suite)
    times = Counter(row.sequence for row in found)
    lost, doubled = len(goal) - len(times), len(found) - len(times)
    assert found == goal, f"{lost} lost, {doubled} doubled"
    firsts = list({row.sequence: row for row in reversed(sent)}.values())[::-1]
    assert sorted(firsts) == [row._replace(time_ns=0) for row in goal]
    assert events == {f"udf-{UDF}-{row.sequence}": f"{UDF}: sum {row.total}, count {row.number}" for row in goal}, (
        f"{len(events)} events of {len(goal)} rows"
    )
    print_campaign(
        "`kill -9` of the Spark driver and of its UDF in a stream of numbered trades, whole suite",
        [
            "kills of the driver",
            "kills of the UDF",
            "trades",
            "rows",
            "lost",
            "doubled",
            "wrong",
            "copies in the topic",
            "events of the user",
        ],
        [
            kills.driver,
            kills.udf,
            f"{len(goal):,}",
            f"{len(found):,}",
            lost,
            doubled,
            0,
            len(sent) - len(firsts),
            f"{len(events):,}",
        ],
        since_s=began_s,
    )
    print(f"Rows in the table at the kills of the driver: {kills.rows}")


def settle(replay: Replay, rows: int) -> None:
    """Let the rest of the trades come, and wait until table, topic and user have the last one."""
    replay.suite.exchange("/sim/clock", {"speed": LAST_SPEED})
    suite = replay.suite

    def ended() -> bool:
        sent = topic_rows(suite)
        in_topic = bool(sent) and sent[-1].sequence == rows - 1
        return len(table_rows(suite)) >= rows and in_topic and len(user_events(suite)) >= rows

    until(ended, _PATIENCE_SECONDS + replay.seconds * SPEED / LAST_SPEED, suite.logs)
