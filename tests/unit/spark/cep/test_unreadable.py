"""A record that can't be read suspends the triggers that needed it, with the reason, and no other one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.triggers import EventKind
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.source.v1 import source_pb2
from dexorder_spark.cep.evaluator import RegistrationChange, RegistrationChanges
from dexorder_spark.cep.inputs import Register
from dexorder_spark.cep.journal import Journal
from dexorder_spark.cep.relay import TriggerRelay
from dexorder_spark.cep.runner import Runner
from dexorder_spark.config import SparkSettings
from dexorder_spark.source.client import SourceBroken
from dexorder_spark.source.offsets import OffsetRange, SourceState
from dexorder_spark.source.records import Result
from dexorder_spark.tables.ticks import TRADES
from tests.fakes.pages import DAY, MINUTE_NS, TICKER, control, page
from tests.rig.dispatches import issued, realtime_dispatch_id
from tests.simulation.memory_files import MemoryFiles

OTHER = "ETH/USDT.SIM"
Read = Callable[[], Iterator[list[Result]]]
Told = dict[str, list[tuple[EventKind, str]]]


class Relay:
    """Takes events by trigger, and knows every dispatch."""

    def __init__(self) -> None:
        self.told: Told = {}

    def report(self, events: Sequence[bytes], applied: Cursor | None, **_: object) -> None:
        for each in map(pb.ReportedTriggerEvent.FromString, events):
            found = self.told.setdefault(each.event.trigger_id, [])
            found.append((EventKind(each.kind), each.event.context.get("reason", "")))

    def describe(self, dispatch_ids: Iterable[str]) -> dict[str, IssuedDispatch]:
        return issued(list(dispatch_ids))


class Source:
    """A log of candles that has grown by one record in each partition when it is looked at a second time."""

    def __init__(self, read: Read) -> None:
        self._read, self._end = read, -1

    def state(self) -> SourceState:
        self._end += 1
        return SourceState({0: 0}, {0: self._end}, {}, topic_id="t")

    def read(self, part: OffsetRange, *, retry_seconds: float) -> Iterator[list[Result]]:
        yield from self._read()


def record(ticker: str, payload: bytes | None = None) -> Result:
    headers = replace(control(0, 2), ticker=ticker, dispatch_id=realtime_dispatch_id(1, ticker))
    good, _ = page(headers)
    return source_pb2.ReadResponse.Result(payload=payload or good, headers=headers.encode())


def run(read: Read) -> Told:
    """Return what is told of a trigger on each of two markets and of one on trades, when such records come."""
    relay, candles, trades = Relay(), Source(read), Source(lambda: iter(()))
    runner = Runner(
        SparkSettings(),
        Journal(MemoryFiles(Random(1))),
        cast(TriggerRelay, relay),
        lambda series: (),
        stop=cast(threading.Event, SimpleNamespace(is_set=lambda: False, wait=lambda seconds: False)),
        clock=ManualClock(wall_ns=DAY + 10 * MINUTE_NS),
        open_source=lambda address: trades if TRADES.topic in address else candles,
    )
    sql = "SELECT close FROM ohlc WHERE close > 1"
    triggers = [
        Register(1, "first", sql, {"fire": "level"}, [TICKER], 0),
        Register(2, "second", sql, {"fire": "level"}, [OTHER], 0),
        Register(3, "trades", "SELECT price FROM ticks WHERE price > 1", {}, [TICKER], 0),
    ]
    changes = [RegistrationChange(each.registration, each) for each in triggers]
    runner.take(RegistrationChanges(changes, Cursor("e", 3)))
    runner._journal.snapshot(runner._evaluator.snapshot())
    for _ in range(3):
        runner._step()
    return relay.told


def test_rows_of_an_issued_dispatch_that_do_not_decode_suspend_the_triggers_of_their_series() -> None:
    told = run(lambda: iter([[record(TICKER, b"\xff"), record(OTHER)]]))
    ((kind, reason),) = told["first"]
    assert kind is EventKind.SUSPENDED and f"a record of candles of {TICKER}, 60 s can't be read" in reason
    assert {kind for kind, _ in told["second"]} == {EventKind.FIRED} and "trades" not in told


def test_records_of_nobody_suspend_no_trigger() -> None:
    forged = record(TICKER, b"\xff")
    forged.headers["dx-job"] = "7-" + "0" * 16
    told = run(lambda: iter([[forged, record(TICKER)]]))
    assert {kind for kind, _ in told["first"]} == {EventKind.FIRED}


def test_records_that_the_source_cannot_read_suspend_the_triggers_of_their_topic() -> None:
    def broken() -> Iterator[list[Result]]:
        yield [record(OTHER)]
        raise SourceBroken("a message is too large")

    told = run(broken)
    for name in ("first", "second"):
        kind, reason = told[name][0]
        assert (
            kind is EventKind.SUSPENDED and "records of dexorder.ohlc can't be read: a message is too large" in reason
        )
        assert len(told[name]) == 1
    assert "trades" not in told


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("dexorder_spark.cep.runner._REPORT_SECONDS", 0.0)
