"""A stage over a topic in memory, with real agents as processes and a catalog in a folder."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.udf import TICKS, UdfCommand, UdfDefinition, UdfInput, UdfOutput, UdfState
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.ticks import TRADES
from dexorder_spark.udf.lake import UdfLake
from dexorder_spark.udf.programs import spec_of
from dexorder_spark.udf.reader import UdfReader
from dexorder_spark.udf.rows import fields_of
from dexorder_spark.udf.sending import Sending
from dexorder_spark.udf.sinks import Refused, Sinks
from dexorder_spark.udf.stage import UdfStage
from tests.fakes.pipeline import wait_until
from tests.fakes.source_server import RunningSource
from tests.paths import ROOT
from tests.rig.dispatches import issued

FRAME_LIMIT = 64 << 20


def agent(kind: str, *more: str) -> UdfCommand:
    return UdfCommand(sys.executable, ("-m", "tests.fakes.udf_agent", kind, *more), {"PYTHONPATH": str(ROOT)})


def definition(kind: str = "sum", *more: str, name: str = "test", **changes: Any) -> UdfDefinition:
    given: dict[str, Any] = {
        "options": {"field": ("price",)},
        "input": UdfInput(TICKS, since_ns=0),
        "command": agent(kind, *more),
    }
    return UdfDefinition(name, **(given | changes))


class KeptSinks(Sinks):
    """Sinks that keep what they are given; ``refuse`` makes them fail first."""

    def __init__(self) -> None:
        super().__init__("test", UdfOutput(), "")
        self.rows: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self.refuses: set[int] = set()

    @property
    def is_used(self) -> bool:
        return True

    def send(self, rows: Any) -> list[Refused]:
        if self.failures:
            raise self.failures.pop(0)
        self.rows += [row for row in rows if row["sequence"] not in self.refuses]
        return [Refused(row, "topic t", "too large") for row in rows if row["sequence"] in self.refuses]


@dataclass
class Rig:
    """A stage whose thread the block of ``running`` owns."""

    stage: UdfStage
    lines: list[str]
    sinks: KeptSinks = field(default_factory=KeptSinks)

    def wait_for(self, rows: int, seconds: float = 30.0) -> None:
        """Wait until the table has so many rows, and the stage says so."""

        def has() -> bool:
            status = self.stage.status
            assert status.state is not UdfState.FAILED, (status.message, self.lines)
            return status.rows >= rows and status.state is UdfState.RUNNING and not status.lag

        wait_until(has, seconds)

    def wait_state(self, state: UdfState, seconds: float = 30.0) -> str:
        wait_until(lambda: self.stage.status.state is state, seconds)
        return self.stage.status.message


def make(
    catalog: CatalogSettings, source: RunningSource, udf: UdfDefinition, stop: threading.Event, **changes: Any
) -> Rig:
    lines: list[str] = []
    table = TRADES if udf.input.table == TICKS else CANDLES
    sinks = KeptSinks()
    max_records = changes.pop("max_records", 100)
    stage = UdfStage(
        udf,
        spec_of(udf, FRAME_LIMIT),
        UdfReader(table, source.address, udf.input, issued, max_records=max_records),
        UdfLake(catalog, udf.name, changes.pop("max_state_bytes", FRAME_LIMIT)),
        Sending(udf.name, sinks, UdfLake(catalog, udf.name, FRAME_LIMIT), lines.append),
        tolerance_ns=table.tolerance_ns,
        stop=stop,
        on_log=lines.append,
        batch_seconds=0.0,
        poll_seconds=0.02,
        **changes,
    )
    return Rig(stage, lines, sinks)


@contextmanager
def running(catalog: CatalogSettings, source: RunningSource, udf: UdfDefinition, **changes: Any) -> Iterator[Rig]:
    """Run a stage; it is stopped at the end of the block."""
    stop = threading.Event()
    rig = make(catalog, source, udf, stop, **changes)
    thread = threading.Thread(target=rig.stage.run)
    thread.start()
    try:
        yield rig
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def table_rows(catalog: CatalogSettings, name: str = "test") -> list[dict[str, Any]]:
    """Return the rows of a UDF's table in the order of their sequence, with their fields as ``fields``."""
    lake = UdfLake(catalog, name, FRAME_LIMIT)
    lake.load()
    rows = lake.rows(0, 1 << 62)
    return [row | {"tags": dict(row["tags"]), "fields": fields_of(row)} for row in rows]
