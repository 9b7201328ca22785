"""Events that the relay would not take suspend their trigger, with the reason, and no other one."""

from __future__ import annotations

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.triggers import EventKind
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep import evaluation
from dexorder_spark.cep.evaluation import Evaluation, Output
from dexorder_spark.cep.inputs import Feed, Register

TICKER, MINUTE_NS = "BTC/USDT.SIM", 60 * SECOND_NS
WIDE = f"SELECT {', '.join(f'close + {n} AS c{n}' for n in range(50))} FROM ohlc WHERE close > 1"
NARROW = "SELECT close FROM ohlc WHERE close > 1"


def rows(count: int) -> list[tuple[object, ...]]:
    return [(number * MINUTE_NS, 2.0, 2.0, 2.0, 2.0, 1.0, None, None) for number in range(1, count + 1)]


def register(number: int, trigger_id: str, sql: str, ticker: str = TICKER) -> Register:
    return Register(number, trigger_id, sql, {"fire": "level"}, [ticker], 0)


def events(outputs: list[Output]) -> list[tuple[int, EventKind, str]]:
    found = [(each, pb.ReportedTriggerEvent.FromString(each.event)) for each in outputs]
    assert all(each.is_end == (EventKind(event.kind) is not EventKind.FIRED) for each, event in found)
    return [(each.registration, EventKind(event.kind), event.event.context.get("reason", "")) for each, event in found]


def run(given: Evaluation, ticker: str = TICKER) -> list[tuple[int, EventKind, str]]:
    return events(given.run([(1, Feed(ticker, 60, rows(3), 0, 4 * MINUTE_NS))]))


def test_an_event_that_is_too_large_suspends_its_trigger_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_EVENT_BYTES", 500)
    given = Evaluation()
    given.run([(0, register(1, "wide", WIDE)), (0, register(2, "narrow", NARROW))])
    found = run(given)
    fired = [(2, EventKind.FIRED, "")] * 3
    assert [each for each in found if each[0] == 2] == fired
    ((_, kind, reason),) = [each for each in found if each[0] == 1]
    assert (kind, "an event has" in reason, "at most 500" in reason) == (EventKind.SUSPENDED, True, True)
    assert 1 not in given.watchers() and 2 in given.watchers()


def test_an_id_that_is_too_long_suspends_its_trigger() -> None:
    ticker, trigger_id = f"{'X' * 150}.SIM", "t" * 128
    given = Evaluation()
    given.run([(0, register(1, trigger_id, NARROW, ticker))])
    ((_, kind, reason),) = run(given, ticker)
    assert (kind, "id has" in reason, "256 are allowed" in reason) == (EventKind.SUSPENDED, True, True)
    assert not given.watchers()
