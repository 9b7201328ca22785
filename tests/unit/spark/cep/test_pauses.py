"""Pauses in micro-batches: changes of the relay become inputs that the journal has, and what has ended stays so."""

from __future__ import annotations

from typing import Any

import pytest

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.evaluator import Evaluator, RegistrationChange, RegistrationChanges
from dexorder_spark.cep.inputs import Pause, Register, Resume, SkipPauses
from dexorder_spark.cep.journal import JournalBatch, Snapshot
from dexorder_spark.cep.shards import shard_of, shards_of

TICKERS = ["BTC/USDT.SIM", "ETH/USDT.SIM"]
MINUTE_NS = 60 * SECOND_NS


def change(
    sequence: int, registered: int = 1, *, number: int = 1, fire: str = "level", **state: object
) -> RegistrationChanges:
    registered_ns = (number - 1) * 62 * SECOND_NS  # the second one after the first candle was settled
    parameters = {"fire": fire, "initial": "fire"}
    trigger = Register(number, f"t{number}", "close > 1", parameters, TICKERS, registered_ns)
    paused, changed_ns = bool(state.get("paused")), int(str(state.get("changed_ns", 0)))
    pauses: Any = state.get("pauses", ())
    each = RegistrationChange(number, trigger, paused, changed_ns, registered, pauses)
    return RegistrationChanges([each], Cursor("epoch", sequence), is_reset=bool(state.get("reset")))


def candles(evaluator: Evaluator, n: int) -> None:
    for ticker in TICKERS:
        row = (n * MINUTE_NS, 2.0, 2.0, 2.0, 2.0, 1.0, None, None)
        end_ns = (n + 1) * MINUTE_NS
        evaluator.feed(Series.decode(ticker, 60), [row], TimeRange(n * MINUTE_NS, end_ns), end_ns + SECOND_NS)


def live(evaluator: Evaluator) -> list[str]:
    return [each.trigger_id for each in evaluator._watchers.values()]


def fired(batch: JournalBatch) -> list[tuple[str, int]]:
    events = [pb.ReportedTriggerEvent.FromString(each) for each in batch.events]
    return [(each.ticker, each.event.timestamp // MINUTE_NS) for each in events if each.kind == 1]


def test_a_pause_and_its_end_are_inputs_of_the_journal_and_survive_a_snapshot() -> None:
    evaluator = Evaluator()
    start = evaluator.snapshot()
    batches: list[JournalBatch] = []

    def batch(n: int, changes: RegistrationChanges | None = None) -> list[tuple[str, int]]:
        if changes is not None:
            evaluator.apply(changes)
        candles(evaluator, n)
        batches.append(evaluator.finish({}))
        return fired(batches[-1])

    assert batch(0, change(1)) == [(ticker, 1) for ticker in TICKERS]
    assert batch(1, change(2, paused=True, changed_ns=MINUTE_NS)) == []
    assert [each for each in batches[-1].inputs if isinstance(each, Pause)] == [Pause(1, ticker) for ticker in TICKERS]
    again = Evaluator(Snapshot.decode(evaluator.snapshot().encode()))
    assert all(each.watch.is_paused for each in again._watchers.values())
    evaluator = again
    assert batch(2) == []
    # resumed after the second candle was settled, and before the third one was
    resumed = change(3, changed_ns=2 * MINUTE_NS + 2 * SECOND_NS)
    assert batch(3, resumed) == [*((ticker, 3) for ticker in TICKERS), *((ticker, 4) for ticker in TICKERS)]
    evaluator.apply(change(4, changed_ns=2 * MINUTE_NS + 2 * SECOND_NS))
    assert not evaluator.has_inputs, "it runs already"
    repeated = Evaluator(start)
    stored = [JournalBatch.decode(each.encode()) for each in batches]
    assert stored == batches
    for each in stored:
        for given in each.inputs:
            repeated._take(given)
        assert repeated.finish({}).events == each.events


def test_a_trigger_that_has_ended_is_not_started_again_by_a_pause_that_crossed_its_end() -> None:
    evaluator = Evaluator()
    evaluator.apply(change(1, fire="once"))
    candles(evaluator, 0)
    assert len(fired(evaluator.finish({}))) == 1 and live(evaluator) == []
    for sequence, paused in ((2, True), (3, False)):
        evaluator.apply(change(sequence, fire="once", paused=paused))
        assert live(evaluator) == [] and not evaluator.has_inputs
    evaluator.apply(change(4, registered=4, number=2, paused=True))
    assert live(evaluator) == ["t2"], "its registration is new, and was paused at once"
    candles(evaluator, 1)
    assert fired(evaluator.finish({})) == []
    evaluator.apply(change(9, fire="once", paused=True, reset=True))
    assert live(evaluator) == ["t1"], "the relay's list is all there is"


def settled(n: int) -> int:
    """Return a time just before candle ``n`` is settled."""
    return (n + 1) * MINUTE_NS


@pytest.mark.parametrize("is_known", [False, True])
def test_rows_of_pauses_that_the_process_learns_of_after_their_end_do_not_fire(is_known: bool) -> None:
    evaluator = Evaluator()
    start = evaluator.snapshot()
    batches: list[JournalBatch] = []
    if is_known:
        evaluator.apply(change(1))
        batches.append(evaluator.finish({}))
    # paused and resumed twice: candles 1, 2 and 4 were settled in the pauses, and are evaluated behind them
    pauses = [[settled(1), settled(3)], [settled(4), settled(5)]]
    evaluator.apply(change(6, changed_ns=settled(5), pauses=pauses))
    for n in range(4):
        candles(evaluator, n)
    batches.append(evaluator.finish({}))
    evaluator.apply(change(7, changed_ns=settled(5), pauses=pauses))
    assert not evaluator.has_inputs, "it knows them"
    evaluator = Evaluator(Snapshot.decode(evaluator.snapshot().encode()))
    evaluator.apply(change(8, changed_ns=settled(5), pauses=pauses))
    assert not evaluator.has_inputs, "its state has them"
    for n in range(4, 7):
        candles(evaluator, n)
    batches.append(evaluator.finish({}))
    found = [n - 1 for batch in batches for ticker, n in fired(batch) if ticker == TICKERS[0]]
    assert found == [0, 3, 5, 6]
    repeated = Evaluator(start)
    repeated.repeat(stored := [JournalBatch.decode(each.encode()) for each in batches])
    assert stored == batches
    assert repeated.snapshot().encode() == evaluator.snapshot().encode()


def test_a_pause_that_the_process_knew_ends_with_the_last_resumption() -> None:
    evaluator = Evaluator()
    evaluator.apply(change(1))
    evaluator.apply(change(2, paused=True, changed_ns=settled(0)))
    evaluator.apply(change(5, changed_ns=settled(3), pauses=[[settled(0), settled(1)], [settled(2), settled(3)]]))
    for n in range(4):
        candles(evaluator, n)
    assert [n - 1 for ticker, n in fired(evaluator.finish({})) if ticker == TICKERS[0]] == [3]


def test_a_pause_goes_to_the_process_that_has_the_ticker() -> None:
    for ticker in TICKERS:
        for each in (Pause(1, ticker), Resume(1, ticker, 5), SkipPauses(1, ticker, [[1, 2]])):
            assert [*shards_of(each, 3)] == [shard_of(ticker, 3)]
