"""Rig of the triggers' process without Kafka and without a relay: records in memory, and every report kept.

``python -m dexorder_spark.cep`` runs as a child, is killed and started again at will; ``events`` says what a subscriber
would have seen, and ``deliveries`` how often each event came.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, parse_time
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1.common_pb2 import Cursor
from tests.fakes.pipeline_relay import PipelineRelay, served
from tests.fakes.source_server import FakeSource, RunningSource
from tests.paths import ROOT
from tests.rig.dispatches import realtime_dispatch_id

MINUTE_NS = 60 * SECOND_NS
START_NS = parse_time("2024-02-01T00:00:00Z")
PARTITIONS = 2


class TriggerRelay(PipelineRelay):
    """Relay that knows triggers.

    Attributes:
        events: Serialized events by id, in the order in which they first came.
        deliveries: How often each came.
        renamed: Ids that came again with another content.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[pb.TriggerChange] = []
        self.applied = 0
        self.events: dict[str, bytes] = {}
        self.deliveries: Counter[str] = Counter()
        self.renamed: set[str] = set()
        self._changed = threading.Condition()

    def register(self, trigger_id: str, sql: str, tickers: Sequence[str], **parameters: str) -> int:
        """Register a trigger; return its number."""
        with self._changed:
            number = len(self.changes) + 1
            request = ingest.CEPTriggerRequest(
                trigger_id=trigger_id, sql_pattern=sql, tickers=tickers, parameters=parameters
            )
            self.changes.append(pb.TriggerChange(registration=number, trigger=request, registered_ns=START_NS))
            self._changed.notify_all()
        return number

    def delete(self, registration: int) -> None:
        with self._changed:
            self.changes.append(pb.TriggerChange(registration=registration))
            self._changed.notify_all()

    def WatchTriggers(self, request: pb.WatchTriggersRequest, context: Any) -> Iterator[pb.WatchTriggersResponse]:
        after, epoch = request.after.sequence, "rig"
        while context.is_active():
            with self._changed:
                found = self.changes[after:]
                after = len(self.changes)
            yield pb.WatchTriggersResponse(changes=found, cursor=Cursor(epoch=epoch, sequence=after))
            with self._changed:
                self._changed.wait_for(lambda after=after: len(self.changes) > after, timeout=1)  # type: ignore[misc]

    def ReportTriggerEvents(
        self, request: pb.ReportTriggerEventsRequest, context: Any
    ) -> pb.ReportTriggerEventsResponse:
        with self._changed:
            self.applied = max(self.applied, request.applied.sequence)
            for each in request.events:
                content = each.SerializeToString(deterministic=True)
                self.deliveries[each.event_id] += 1
                if self.events.setdefault(each.event_id, content) != content:
                    self.renamed.add(each.event_id)
        return pb.ReportTriggerEventsResponse()


def candles_of(ticker: str, count: int, *, seed: int) -> list[Candle]:
    """Return minutes of a random walk."""
    chance, price, found = random.Random(f"{seed}{ticker}"), 100.0, []
    for minute in range(count):
        opening, price = price, max(1.0, price + chance.uniform(-3, 3))
        high, low = max(opening, price) + 0.5, min(opening, price) - 0.5
        volume = chance.uniform(1, 9)
        found.append(Candle(START_NS + minute * MINUTE_NS, opening, high, low, price, volume, volume * price, 7))
    return found


class Rig:
    """A source, a relay and a folder; the process comes and goes."""

    def __init__(self, folder: Path, source: RunningSource, relay: TriggerRelay, address: str) -> None:
        self.folder = folder
        self.source = source
        self.relay = relay
        self._env = {
            **os.environ,
            "DEXORDER_SPARK_SOURCE": source.address,
            "DEXORDER_SPARK_RELAY": address,
            "DEXORDER_SPARK_TRIGGER_FOLDER": str(folder / "triggers"),
            "DEXORDER_SPARK_TRIGGER_BATCH_SECONDS": "0",
            "DEXORDER_SPARK_MAX_TRADE_RECORDS_PER_BATCH": "20",
            "DEXORDER_SPARK_POLL_MS": "5",
            "DEXORDER_CATALOG_URI": f"sqlite:///{folder}/catalog.db",
            "DEXORDER_CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
        }
        self._pages = Counter[str]()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, fault: str = "", *, processes: int = 1) -> subprocess.Popen[bytes]:
        """Start the process; ``fault`` as in `pipeline.fault`. ``processes`` evaluate, if more than one."""
        self.kill()
        env = self._env | {"DEXORDER_SPARK_FAULT": fault, "DEXORDER_SPARK_TRIGGER_PROCESSES": str(processes)}
        with (self.folder / "triggers.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dexorder_spark.cep"], cwd=ROOT, env=env, stdin=subprocess.PIPE, stderr=log
            )
        return self.process

    def kill(self) -> None:
        """Kill the process, as ``kill -9`` of the driver does through the pipe, but without its last batch."""
        if self.process:
            self.process.kill()
            self.process.wait()
            if self.process.stdin:
                self.process.stdin.close()
            self.process = None

    def produce(self, ticker: str, candles: Sequence[Candle], *, dispatch: int = 1, amends: bool = False) -> None:
        """Append a realtime record of closed candles."""
        page = self._pages[ticker]
        self._pages[ticker] += 1
        span = TimeRange(candles[0].open_ns, candles[-1].open_ns + MINUTE_NS)
        headers = PageHeaders(
            Kind.PAGE, ticker, 60, realtime_dispatch_id(dispatch, ticker), page, span, START_NS, amends=amends
        )
        partition = sum(ticker.encode()) % PARTITIONS
        self.source.fake.add(partition, page_value("r", list(candles)), ticker, headers.encode())

    def wait_applied(self, change: int, seconds: float = 60) -> None:
        """Wait until the process has a change on disk."""
        self.wait(lambda: self.relay.applied >= change, seconds)

    def wait(self, condition: Any, seconds: float = 60) -> None:
        """Wait for a condition."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError((self.folder / "triggers.log").read_text()[-4_000:])
            time.sleep(0.01)


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """Serve source and relay until the block ends; the process is killed then."""
    relay, source = TriggerRelay(), RunningSource(FakeSource(PARTITIONS))
    with served(relay) as address:
        made = Rig(folder, source, relay, address)
        try:
            yield made
        finally:
            made.kill()
            source.stop()
