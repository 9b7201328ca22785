from __future__ import annotations

from dexorder_common.model.dispatch_id import TraceContext, new_dispatch_id
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_spark.pipeline.traces import MAX_TRACES, BatchTimes, record_batch
from dexorder_spark.records.reporter import FinalReport
from tests.fakes.spans import Exported, exporting

TIMES = BatchTimes(began_ns=1_000, decoded_ns=2_000, committed_ns=5_000, reported_ns=6_000)
SERIES = Series("BTC/USDT.SIM", 60)
TOPIC, TABLE = "dexorder.ohlc", "trading.ohlc"


def context(number: int) -> TraceContext:
    return TraceContext(f"{number:032x}", f"{number:016x}")


def dispatch(number: int, trace: int | None) -> str:
    return new_dispatch_id(number, "0123456789abcdef" + (context(trace).text if trace else ""))


def page(dispatch_id: str, rows: int) -> PageResult:
    return PageResult(dispatch_id, SERIES, TimeRange(0, 60_000_000_000), (), None, 1, rows, "page")


def batch(exported: Exported | None, pages: list[PageResult], finals: list[FinalReport]) -> None:
    record_batch(TOPIC, TABLE, pages, finals, TIMES, operation="append", snapshot_id=2**62)


def test_each_request_of_a_batch_gets_the_batch_with_its_own_numbers() -> None:
    first, again, second, untraced = dispatch(1, 7), dispatch(2, 7), dispatch(3, 8), dispatch(4, None)
    pages = [page(first, 1_000), page(again, 200), page(second, 3), page(untraced, 50)]
    with exporting() as exported:
        batch(exported, pages, [FinalReport(second, 0, None, 3), FinalReport(untraced, 0, None, 50)])
    found = exported.named(f"process {TOPIC}")
    assert [(f"{span.parent.span_id:016x}", f"{span.parent.trace_id:032x}") for span in found if span.parent] == [
        (context(7).span_id, context(7).trace_id),
        (context(8).span_id, context(8).trace_id),
    ]
    numbers = [
        (s.attributes["messaging.batch.message_count"], s.attributes["dexorder.rows"]) for s in found if s.attributes
    ]
    assert numbers == [(2, 1_200), (2, 3)]
    assert [(span.start_time, span.end_time) for span in found] == [(1_000, 6_000)] * 2
    for name, times in (
        ("decode", (1_000, 2_000)),
        (f"commit {TABLE}", (2_000, 5_000)),
        ("report to the relay", (5_000, 6_000)),
    ):
        inside = exported.named(name)
        assert [(span.start_time, span.end_time) for span in inside] == [times] * 2
        assert [exported.path(span) for span in inside] == [["?", f"process {TOPIC}", name]] * 2
    (commit, _) = exported.named(f"commit {TABLE}")
    assert dict(commit.attributes or {}) == {
        "db.system.name": "iceberg",
        "db.collection.name": TABLE,
        "db.operation.name": "append",
        "dexorder.snapshot_id": str(2**62),
    }


def test_the_traces_of_a_batch_are_bounded_and_counted() -> None:
    traced = [page(dispatch(number, number), 1) for number in range(1, MAX_TRACES + 10)]
    with exporting() as exported:
        batch(exported, traced, [])
    found = exported.named(f"process {TOPIC}")
    assert len(found) == MAX_TRACES
    assert {(span.attributes or {})["dexorder.traces_in_batch"] for span in found} == {len(traced)}


def test_without_a_tracer_nothing_is_recorded() -> None:
    batch(None, [page(dispatch(1, 7), 1)], [])
    with exporting() as exported:
        batch(exported, [page(dispatch(1, None), 1)], [])
    assert exported.spans == ()
