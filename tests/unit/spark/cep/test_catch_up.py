"""A trigger sees what was settled after its registration, whenever its process learns of it, and nothing before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.trigger_messages import decode_value
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.catch_up import LOOK_BACK_NS, OLDEST_NS, since, start_of
from dexorder_spark.cep.evaluation import Evaluation
from dexorder_spark.cep.inputs import Feed, Input, Register
from dexorder_spark.source.offsets import OffsetRange, SourceState
from dexorder_spark.source.records import Result
from tests.rig.dispatches import realtime_dispatch_id

TICKER = "BTC/USDT.SIM"
NOW_NS = 1_700_000_000 * SECOND_NS
SETTLES_S = 2
"""Time by which a trade is settled later than it was made."""


def register(sql: str, at_s: float) -> Register:
    return Register(1, "t", sql, {"fire": "level"}, [TICKER], NOW_NS + round(at_s * SECOND_NS))


def trades(second: int) -> Feed:
    """Return the trade of a second, in the record that settles it."""
    at_ns = NOW_NS + second * SECOND_NS
    row = (at_ns + SECOND_NS // 2, f"{second}", float(second), 1.0, None)
    return Feed(TICKER, 0, [row], at_ns, at_ns + SECOND_NS, at_ns + SETTLES_S * SECOND_NS)


def candle(second: int) -> Feed:
    at_ns = NOW_NS + second * SECOND_NS
    row = (at_ns, *[float(second)] * 4, 1.0, None, None)
    return Feed(TICKER, 1, [row], at_ns, at_ns + SECOND_NS, at_ns + SETTLES_S * SECOND_NS)


def fired(inputs: Sequence[Input], restarts: Sequence[int] = ()) -> list[float]:
    """Return the values with which the inputs fire; the engine is written and read before some of them."""
    evaluation, found = Evaluation(), []
    for number, each in enumerate(inputs):
        if number in restarts:
            evaluation = Evaluation(evaluation.dump())
        for output in evaluation.run([(number, each)]):
            event = pb.ReportedTriggerEvent.FromString(output.event).event
            found += [row.values[0] for row in event.rows]
    return [number_of(each) for each in found]


def number_of(value: bytes) -> float:
    found = decode_value(value)
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize(
    ("sql", "feed"),
    [
        ("SELECT price FROM ticks WHERE price >= 0", trades),
        ("SELECT `close` FROM ohlc_1s WHERE `close` >= 0", candle),
        ("SELECT m FROM (SELECT `close` AS m FROM ohlc_1s) WHERE m >= 0", candle),
    ],
)
@pytest.mark.parametrize("arrives", range(3, 9))
@pytest.mark.parametrize("at_s", [4.0, 4.3, 4.999])
def test_what_is_settled_after_the_registration_fires_however_late_it_arrives(
    sql: str, feed: type[Feed], arrives: int, at_s: float
) -> None:
    inputs: list[Input] = [feed(second) for second in range(9)]  # type: ignore[call-arg,arg-type]
    inputs.insert(arrives, register(sql, at_s))
    settled = [float(second) for second in range(9) if second + SETTLES_S > at_s]
    for restarts in ([], [arrives], [arrives + 1], range(20)):
        assert fired(inputs, list(restarts)) == settled


def result(at_ns: int) -> Result:
    span = TimeRange(at_ns - SECOND_NS, at_ns)
    headers = PageHeaders(Kind.TRADES, TICKER, 0, realtime_dispatch_id(1, TICKER), 0, span, at_ns)
    return Result(headers=headers.encode())


@given(st.lists(st.integers(0, 40), min_size=1, max_size=900), st.integers(0, 20_000))
def test_no_record_after_the_time_is_before_the_place(gaps: list[int], at_s: int) -> None:
    stamps = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    log = [result(NOW_NS + each * SECOND_NS) for each in stamps]
    reads = []

    def read(part: OffsetRange) -> list[Result]:
        reads.append(part)
        return log[part.start : part.end]

    place = since(SourceState({0: 0}, {0: len(log)}, {}), NOW_NS + at_s * SECOND_NS, read)[0]
    assert all(stamp < at_s for stamp in stamps[:place])
    assert len(reads) <= 5 and sum(each.end - each.start for each in reads) <= 40


def test_a_wrong_time_of_one_record_hides_nothing() -> None:
    log = [result(NOW_NS + n * SECOND_NS) for n in range(900)]
    log[-64] = result(SECOND_NS)
    state = SourceState({0: 0}, {0: 900}, {})
    assert since(state, NOW_NS + 500 * SECOND_NS, lambda part: log[part.start : part.end])[0] <= 500


def test_an_old_registration_starts_at_the_end_and_a_new_one_beside_it_at_its_time() -> None:
    log = [result(NOW_NS + n * SECOND_NS) for n in range(900)]
    state, now_ns = SourceState({0: 0}, {0: 900}, {}), NOW_NS + 900 * SECOND_NS

    def start(*registered_ns: int) -> int:
        return start_of(None, state, "trades", registered_ns, lambda part: log[part.start : part.end], now_ns)[0]

    old, new = now_ns - OLDEST_NS - 1, NOW_NS + 800 * SECOND_NS
    assert start(old) == 900
    assert start(old, new) <= 800 - LOOK_BACK_NS // SECOND_NS
