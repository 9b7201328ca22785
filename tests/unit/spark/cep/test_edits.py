"""Edits in micro-batches: inputs that the journal has, so that each row is judged once, through any kill."""

from __future__ import annotations

import random
from dataclasses import replace

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1.ingest_pb2 import CEPTriggerRequest
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.evaluator import Evaluator, RegistrationChange, RegistrationChanges
from dexorder_spark.cep.inputs import Edit, Register
from dexorder_spark.cep.journal import JournalBatch, Snapshot
from dexorder_spark.cep.relay import decode_change
from dexorder_spark.cep.shards import shards_of

TICKERS = ["BTC/USDT.SIM", "ETH/USDT.SIM"]
MINUTE_NS = 60 * SECOND_NS
LEVEL = {"fire": "level"}


def change(sequence: int, revision: int, least: int, *, reset: bool = False, **more: str) -> RegistrationChanges:
    trigger = Register(1, "t", f"close > {least}", LEVEL | more, TICKERS, 0, revision)
    return RegistrationChanges([RegistrationChange(1, trigger, False, 0, 1)], Cursor("epoch", sequence), is_reset=reset)


def feed(evaluator: Evaluator, n: int, close: float) -> None:
    for ticker in TICKERS:
        row = (n * MINUTE_NS, close, close, close, close, 1.0, None, None)
        end_ns = (n + 1) * MINUTE_NS
        evaluator.feed(Series.decode(ticker, 60), [row], TimeRange(n * MINUTE_NS, end_ns), end_ns + SECOND_NS)


def fired(batch: JournalBatch) -> list[tuple[str, int]]:
    events = [pb.ReportedTriggerEvent.FromString(each) for each in batch.events]
    return [(each.ticker, each.event.timestamp // MINUTE_NS - 1) for each in events if each.kind == 1]


def test_each_row_is_judged_once_by_the_text_in_force_while_the_process_is_killed() -> None:
    """A batch that is killed before it is in the journal is taken again; one that is there is not."""
    kills = edits = 0
    for seed in range(12):
        rng = random.Random(seed)
        disk = Evaluator().snapshot().encode(), list[bytes]()
        evaluator, sequence, revision, least = Evaluator(), 1, 1, 5
        found: list[tuple[str, int]] = []
        expected: list[tuple[str, int]] = []
        n = 0
        while n < 25:
            asked = change(sequence, revision, least)
            if rng.random() < 0.3:  # answered by the relay before the next batch
                sequence, revision, least = sequence + 1, revision + 1, rng.choice((2, 5, 8))
                edits += 1
                asked = change(sequence, revision, least, reset=rng.random() < 0.2)
            closes = [float(rng.randint(1, 9)) for _ in range(rng.randint(0, 3))]
            while True:
                if evaluator.cursor is None or evaluator.cursor.sequence < sequence:
                    evaluator.apply(asked)
                for offset, close in enumerate(closes):
                    feed(evaluator, n + offset, close)
                batch = evaluator.finish({})
                is_killed = rng.random() < 0.25
                is_stored = not is_killed or rng.random() < 0.5
                if is_stored:
                    disk[1].append(batch.encode())
                if is_killed:
                    kills += 1
                    evaluator = Evaluator(Snapshot.decode(disk[0]))
                    evaluator.repeat(map(JournalBatch.decode, disk[1]))
                elif rng.random() < 0.2:
                    disk = evaluator.snapshot().encode(), []
                if is_stored:
                    break
            found += fired(batch)
            places = [(ticker, n + k) for k, close in enumerate(closes) if close > least for ticker in TICKERS]
            assert sorted(fired(batch)) == sorted(places), (seed, n)
            expected += places
            n += len(closes)
        assert sorted(found) == sorted(expected) and found
    assert kills > 20 and edits > 20


def test_an_edit_keeps_the_registration_and_changes_when_it_ends() -> None:
    evaluator = Evaluator()
    evaluator.apply(change(1, 1, 5))
    feed(evaluator, 0, 6.0)
    evaluator.finish({})
    evaluator.apply(change(2, 3, 5, expires="60"))
    (edit,) = evaluator.finish({}).inputs
    assert edit == Edit(1, 3, "close > 5", {**LEVEL, "expires": "60"}) and [*shards_of(edit, 3)] == [0, 1, 2]
    evaluator.apply(change(2, 3, 5, expires="60"))
    assert not evaluator.has_inputs, "it has it"
    evaluator = Evaluator(Snapshot.decode(evaluator.snapshot().encode()))
    assert [each.watch.revision for each in evaluator._watchers.values()] == [3]
    evaluator.advance(61 * SECOND_NS)
    (ended,) = evaluator.finish({}).events
    assert pb.ReportedTriggerEvent.FromString(ended).kind == 3 and evaluator.is_empty
    evaluator.apply(change(3, 4, 8))
    assert evaluator.is_empty and not evaluator.has_inputs, "it has ended, which the relay did not know"


def test_an_older_relay_and_a_restored_one_say_what_is_in_force() -> None:
    older = pb.TriggerChange(registration=1, trigger=CEPTriggerRequest(trigger_id="t"))
    assert decode_change(older).trigger == Register(1, "t", "", {}, [], 0, 1)
    evaluator = Evaluator()
    evaluator.apply(change(1, 3, 5))
    evaluator.finish({})
    for n, least in enumerate((8, 5)):  # the file is an older copy, with an edit of its own
        evaluator.apply(change(9, 2, least, reset=True))
        feed(evaluator, n, 7.0)
        assert bool(fired(evaluator.finish({}))) == (least == 5)


def test_what_a_resumption_releases_is_of_the_text_before_an_edit_that_comes_with_it() -> None:
    """Rows since the resumption were evaluated in the pause, of whose end the process learns together with the edit."""

    def state(sequence: int, revision: int, least: int, *, paused: bool, changed_ns: int = 0) -> RegistrationChanges:
        made = change(sequence, revision, least)
        return replace(made, changes=[made.changes[0]._replace(is_paused=paused, changed_ns=changed_ns)])

    evaluator = Evaluator()
    evaluator.apply(state(1, 1, 5, paused=True))
    for n in (1, 2):
        feed(evaluator, n, 6.0)
    assert fired(evaluator.finish({})) == []
    evaluator.apply(state(3, 2, 8, paused=False, changed_ns=150 * SECOND_NS))
    assert sorted(fired(evaluator.finish({}))) == [(ticker, 2) for ticker in TICKERS]
    feed(evaluator, 3, 6.0)
    assert fired(evaluator.finish({})) == []
