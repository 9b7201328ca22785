"""The engine in several processes: the same events in the same order as in one, whatever their number becomes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.evaluation import Evaluation, Output
from dexorder_spark.cep.inputs import Expire, Feed, Input, Register, Remove
from dexorder_spark.cep.shards import ShardDied, Shards, merged, shard_of

TICKERS = tuple(f"M{n}/USDT.SIM" for n in range(7))
MINUTE_NS = 60 * SECOND_NS
ABOVE = "SELECT ticker, close FROM ohlc WHERE close > {}"
PATTERN = (
    "SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES A.close AS a, B.close AS b "
    "PATTERN (A B) DEFINE B AS B.close > A.close)"
)
FAILS = "SELECT close FROM ohlc WHERE 10 / (trades - 5) > 100"


def registrations() -> Iterator[Register]:
    """Conditions and patterns on all tickers; one fires once, one fails at the fifth minute, one ends."""
    texts = [(ABOVE.format(3), {"fire": "level"}), (PATTERN, {}), (ABOVE.format(4), {"fire": "once"}), (FAILS, {})]
    texts += [(ABOVE.format(2), {"fire": "level", "expires": "300"}), (ABOVE.format(1), {"on": "tick"})]
    for number, (sql, parameters) in enumerate(texts, 1):
        yield Register(number, f"t{number}", sql, parameters, TICKERS, 0)
    yield Register(7, "one", ABOVE.format(0), {"fire": "level"}, TICKERS[:1], 0)


def minute(number: int) -> list[Input]:
    """A trade and a closed candle of every ticker."""
    found: list[Input] = []
    for place, ticker in enumerate(TICKERS):
        open_ns, close = number * MINUTE_NS, float((number * (place + 2)) % 7)
        trade = (open_ns + SECOND_NS, f"n{number}", close, 1.0, None)
        candle = (open_ns, close, close, close, close, 1.0, close, number if place > 3 else 1)
        found.append(Feed(ticker, 0, [trade], open_ns, open_ns + MINUTE_NS))
        found.append(Feed(ticker, 60, [candle], open_ns, open_ns + MINUTE_NS))
    return found


BATCHES: list[list[Input]] = [
    [*registrations(), *minute(0)],
    *(minute(number) for number in range(1, 4)),
    [Expire(300 * SECOND_NS), *minute(4)],
    [*minute(5), *minute(6)],
    [Remove(1), *minute(7), *minute(8)],
]


NAMES = {each.registration: each.trigger_id for each in registrations()}


def numbered(batch: list[Input]) -> list[tuple[int, Input]]:
    return list(enumerate(batch))


@pytest.mark.smoke
def test_two_and_three_processes_have_the_outputs_of_one_also_when_their_number_changes() -> None:
    one = Evaluation()
    expected = [one.run(numbered(batch), NAMES) for batch in BATCHES]
    kinds = {pb.ReportedTriggerEvent.FromString(each.event).kind for batch in expected for each in batch}
    assert kinds == {1, 2, 3}
    assert len({shard_of(ticker, 2) for ticker in TICKERS}) == 2
    state, found = None, []
    for count, batches in ((2, BATCHES[:3]), (3, BATCHES[3:5]), (2, BATCHES[5:])):
        several = Shards(state, count)
        try:
            found += [several.run(numbered(batch), NAMES) for batch in batches]
            state = several.dump()
            watchers = several.watchers()
        finally:
            several.close()
    assert found == expected
    assert state is not None
    assert (state.tickers, sorted(watchers)) == (one.dump().tickers, sorted(one.watchers()))


@pytest.mark.smoke
def test_a_process_that_is_killed_fails_the_batch() -> None:
    several = Shards(None, 2)
    try:
        several._processes[1].kill()
        several._processes[1].wait()
        with pytest.raises(ShardDied):
            several.run(numbered(BATCHES[0]))
    finally:
        several.close()


def test_nothing_comes_after_the_end_of_a_trigger_and_the_order_is_that_of_the_inputs() -> None:
    def output(number: int, registration: int, is_end: bool = False) -> Output:
        return Output(number, registration, is_end, b"")

    answers = [[output(0, 1), output(5, 1, True)], [output(2, 1, True), output(3, 2), output(9, 1)]]
    assert merged(answers) == [output(0, 1), output(2, 1, True), output(3, 2)]
