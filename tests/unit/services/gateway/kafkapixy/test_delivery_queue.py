"""The delivery queue: order of partitions, buffers, limits of callers, commits."""

from __future__ import annotations

import pytest

from services.gateway.kafkapixy.ack_tracker import AckRules
from services.gateway.kafkapixy.commits import StartPosition
from services.gateway.kafkapixy.delivery_queue import DeliveryQueue
from services.gateway.kafkapixy.pending_runs import Amount
from services.gateway.kafkapixy.types import Delivery, Demand, NotAssigned, Span

TIMEOUT = 100


def queue_of(*partitions: int, buffer: int = 4, **rules: int) -> DeliveryQueue[str]:
    rules = {"ack_timeout_ns": TIMEOUT, **rules}
    made: DeliveryQueue[str] = DeliveryQueue(AckRules(**rules), buffer=Amount(buffer, 1 << 22))
    for partition in partitions:
        made.assign(partition, StartPosition(0, committed=True))
    return made


def fetch(into: DeliveryQueue[str], partition: int, *offsets: int) -> None:
    into.fetched(partition, [(offset, f"{partition}:{offset}") for offset in offsets])


def pending(of: DeliveryQueue[str]) -> int:
    return sum(each.pending for each in of.progress().values())


def take(of: DeliveryQueue[str], count: int, now_ns: int = 0) -> list[str]:
    found = [delivery for _ in range(count) for delivery in of.take(Demand(), now_ns=now_ns)]
    return [delivery.records[0][1] for delivery in found]


def test_partitions_take_turns_and_keep_their_order() -> None:
    of = queue_of(0, 1, 2)
    fetch(of, 0, 0, 1, 2)
    fetch(of, 1, 0)
    fetch(of, 2, 0, 1)
    assert take(of, 9) == ["0:0", "1:0", "2:0", "0:1", "2:1", "0:2"]


def test_due_record_comes_before_new_ones() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2)
    assert take(of, 2) == ["0:0", "0:1"]
    assert of.take(Demand(), now_ns=TIMEOUT) == [Delivery(0, [(0, "0:0")], "timeout")]
    of.give_back(Delivery(0, [(0, "")]), now_ns=TIMEOUT)
    assert of.take(Demand(), now_ns=TIMEOUT) == [Delivery(0, [(0, "0:0")], "given_back")]
    assert of.take(Demand(), now_ns=TIMEOUT) == [Delivery(0, [(1, "0:1")], "timeout")]
    assert of.take(Demand(), now_ns=TIMEOUT) == [Delivery(0, [(2, "0:2")])]


def test_full_partition_does_not_stop_the_others() -> None:
    of = queue_of(0, 1, max_pending=1)
    fetch(of, 0, 0, 1)
    fetch(of, 1, 0)
    assert take(of, 4) == ["0:0", "1:0"]
    assert of.ack(0, 0)
    assert take(of, 4) == ["0:1"]


def test_buffer_has_room_again_at_half() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2)
    assert of.full_partitions() == {}
    fetch(of, 0, 3)
    assert of.full_partitions() == {0: 4}
    take(of, 1)
    assert not of.has_room(0)
    take(of, 1)
    assert of.has_room(0)


def test_full_partition_is_paused_when_it_is_not_emptied_or_another_needs_fetching() -> None:
    of = queue_of(0, 1, 2, buffer=4)
    fetch(of, 0, *range(6))
    fetch(of, 1, *range(4))
    fetch(of, 2, *range(3))
    full = of.full_partitions()
    assert full == {0: 6, 1: 4}
    assert take(of, 1) == ["0:0"]
    assert of.partitions_to_pause(full, [2]) == [1]
    assert of.partitions_to_pause(full, []) == [1]
    assert take(of, 4) == ["1:0", "2:0", "0:1", "1:1"]
    assert of.partitions_to_pause(full, []) == []
    assert of.partitions_to_pause(full, [2]) == [0, 1]  # which has half its buffer to fill
    of.revoke(1)
    assert of.partitions_to_pause({1: 4}, []) == []


def test_commits_are_the_changed_positions() -> None:
    of = queue_of(0, 1)
    assert of.commits() == {}
    fetch(of, 1, 0, 1)
    take(of, 2)
    of.ack(1, 1)
    assert of.commits() == {1: (0, "BB.")}
    of.committed({1: (0, "BB."), 7: (1, "")})
    assert of.commits() == {}
    of.ack(1, 0)
    assert of.revoke(1) == (2, "")
    assert of.revoke(1) is None
    assert of.revoke(0) is None


def test_new_group_commits_its_first_position() -> None:
    of = queue_of()
    of.assign(3, StartPosition(9))
    assert of.commits() == {3: (9, "")}


def test_revoked_partition_is_forgotten() -> None:
    of = queue_of(0, 1)
    fetch(of, 0, 0)
    take(of, 1)
    of.revoke(0)
    fetch(of, 0, 1)
    of.give_back(Delivery(0, [(0, "")]), now_ns=0)
    assert (take(of, 2), pending(of), of.partitions) == ([], 0, [1])
    with pytest.raises(NotAssigned, match="partition 0"):
        of.ack(0, 0)


def lost_after_acks() -> DeliveryQueue[str]:
    """Return a queue that lost its partition with 1 and 3 acked, while the commit of 1 was in flight."""
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2, 3, 4)
    take(of, 4)
    of.ack(0, 1)
    assert of.commits() == {0: (0, "BB.")}
    of.ack(0, 3)
    of.lose(0)
    assert (pending(of), of.partitions) == (0, [])
    return of


@pytest.mark.parametrize("acked", [(), ((1, 2),)])
def test_lost_partition_keeps_its_acks_if_kafka_has_one_of_our_commits(acked: tuple[tuple[int, int]]) -> None:
    of = lost_after_acks()
    start = of.resume_position(0, StartPosition(0, acked, committed=True), end=9)
    assert start == StartPosition(0, ((1, 2), (3, 4)))
    of.assign(0, start)
    assert of.commits() == {0: (0, "BBBB.")}
    fetch(of, 0, 0, 1, 2, 3, 4)
    assert take(of, 4) == ["0:0", "0:2", "0:4"]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (StartPosition(2, committed=True), 9),  # another member continued
        (StartPosition(0, ((3, 4),), committed=True), 9),
        (StartPosition(0, warning="metadata of others"), 9),
        (StartPosition(0, committed=True), -1),  # the log was truncated
    ],
)
def test_lost_partition_starts_at_the_commit_of_another_member(start: StartPosition, end: int) -> None:
    of = lost_after_acks()
    assert of.resume_position(0, start, end=end) == start
    assert of.resume_position(0, StartPosition(0, committed=True), end=9) == StartPosition(0, committed=True), (
        "it is remembered once"
    )


def test_lost_partition_without_a_commit_starts_as_new() -> None:
    of = queue_of()
    of.assign(0, StartPosition(9))
    of.lose(0)
    of.lose(0)
    assert of.resume_position(0, StartPosition(9), end=9) == StartPosition(9)


def test_ack_of_delivered_records_only_ignores_others() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1)
    assert not of.ack(0, 0, delivered_only=True)
    assert take(of, 1) == ["0:0"]
    assert of.ack(0, 0, delivered_only=True)


def test_records_given_up_are_named() -> None:
    of = queue_of(0, 1, max_retries=0)
    fetch(of, 1, 0)
    take(of, 1)
    assert of.last_ack_deadline_ns() == TIMEOUT
    assert [(p, run.first) for p, run in of.give_up(now_ns=TIMEOUT)] == [(1, 0)]
    assert of.last_ack_deadline_ns() == 0


def test_set_offsets_restart_a_partition() -> None:
    of = queue_of(0, 1)
    fetch(of, 0, 0, 1, 2, 3)
    assert take(of, 2) == ["0:0", "0:1"]
    of.ack(0, 0)
    of.restart(0, StartPosition(5, ((6, 7),), committed=True))
    assert (pending(of), of.last_ack_deadline_ns(), of.commits()) == (0, 0, {})
    fetch(of, 0, 5, 6, 7)
    assert take(of, 3) == ["0:5", "0:7"]
    of.ack(0, 1)  # delivered before the restart
    assert of.commits() == {}
    of.ack(0, 5)
    assert of.commits() == {0: (7, "")}


def test_late_acks_of_forgotten_records_skip_nothing() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2)
    assert take(of, 3) == ["0:0", "0:1", "0:2"]
    of.restart(0, StartPosition(1, committed=True))
    of.restart(0, StartPosition(0, committed=True))
    for offset in range(3):
        assert of.ack(0, offset) is False
    fetch(of, 0, 0, 1, 2)
    assert take(of, 2) == ["0:0", "0:1"]
    assert of.ack(0, 1) is True  # delivered again
    assert take(of, 2) == ["0:2"]
    assert of.commits() == {0: (0, "BB.")}


# ---- batches


def batches(of: DeliveryQueue[str], demand: Demand, now_ns: int = 0) -> list[tuple[int, list[int], str]]:
    return [(d.partition, [o for o, _ in d.records], d.redelivery) for d in of.take(demand, now_ns=now_ns)]


def stream(records: int, *, caller: int = 1, limit: int = 100, size: int = 10_000) -> Demand:
    return Demand(caller, records, max_unacked=Amount(limit, size))


def test_batch_is_filled_from_partition_to_partition() -> None:
    of = queue_of(0, 1, 2, buffer=100)
    fetch(of, 0, 0, 1, 2)
    fetch(of, 1, 0, 5)
    fetch(of, 2, 7)
    assert batches(of, stream(4)) == [(0, [0, 1, 2], ""), (1, [0], "")]
    assert batches(of, stream(4)) == [(2, [7], ""), (1, [5], "")]
    assert batches(of, stream(4)) == []
    assert of.unacked_of(1) == Amount(6, 18)


def test_stream_is_limited_by_its_unacked_records_but_gets_due_ones() -> None:
    of = queue_of(0, 1, buffer=100)
    fetch(of, 0, 0, 1, 2, 3, 4, 5)
    fetch(of, 1, 0, 1)
    assert batches(of, stream(9, limit=4)) == [(0, [0, 1, 2, 3], "")]
    assert batches(of, stream(9, limit=4)) == []
    assert batches(of, stream(1, caller=2, limit=4), now_ns=1) == [(0, [4], "")]  # it has its own limit
    assert batches(of, stream(9, limit=4), now_ns=TIMEOUT) == [(0, [0, 1, 2, 3], "timeout")]
    assert of.ack_spans(1, [Span(0, 1, 2)]) == (2, [])
    assert batches(of, stream(9, limit=4), now_ns=TIMEOUT) == [(1, [0, 1], "")]


def test_bytes_of_a_batch_and_of_unacked_records_are_limited() -> None:
    of = queue_of(0, buffer=100)
    of.fetched(0, [(n, "x" * 40) for n in range(6)])
    assert batches(of, Demand(1, 9, 50, Amount(9, 100))) == [(0, [0, 1], "")]
    assert batches(of, Demand(1, 9, 50, Amount(9, 100))) == [(0, [2], "")]
    assert batches(of, Demand(1, 9, 50, Amount(9, 100))) == []
    assert of.ack_spans(1, [Span(0, 0, 2)])[0] == 3
    of.fetched(0, [(6, "x" * 5_000)])
    assert batches(of, Demand(1, 9, 9_999, Amount(9, 9_999))) == [(0, [3, 4, 5, 6], "")]
    assert batches(queue_of(0), Demand(1, 9, 50, Amount(9, 100))) == []


def test_unary_callers_and_streams_have_separate_limits() -> None:
    of = queue_of(0, buffer=100, max_pending=2)
    fetch(of, 0, *range(9))
    assert batches(of, stream(4)) == [(0, [0, 1, 2, 3], "")]
    assert take(of, 4) == ["0:4", "0:5"]
    assert batches(of, stream(9)) == [(0, [6, 7, 8], "")]


def test_records_of_an_ended_stream_go_to_the_next_caller() -> None:
    of = queue_of(0, 1, buffer=100)
    fetch(of, 0, 0, 1, 2)
    fetch(of, 1, 0)
    batches(of, stream(9))
    of.ack_spans(1, [Span(0, 1, 1)])
    of.release(1, now_ns=0)
    assert of.unacked_of(1) == Amount()
    assert take(of, 2) == ["0:0", "1:0"]
    assert batches(of, stream(9, caller=2)) == [(0, [2], "given_back")]


def test_spans_given_back_are_due_at_once() -> None:
    of = queue_of(0, 1, buffer=100)
    fetch(of, 0, 0, 1, 2)
    batches(of, stream(9))
    of.give_back_spans(2, [Span(0, 0, 2)], now_ns=0)  # delivered to another caller
    of.give_back_spans(1, [Span(0, 1, 7), Span(5, 0, 0)], now_ns=0)
    assert batches(of, stream(9)) == [(0, [1, 2], "given_back")]


def test_refused_acks_have_a_reason() -> None:
    of = queue_of(0, buffer=100)
    fetch(of, 0, 0, 1, 2)
    batches(of, stream(1))
    take(of, 1)
    count, refused = of.ack_spans(1, [Span(0, 0, 9), Span(4, 1, 2)])
    assert count == 1
    assert [(each.span, each.reason.code.name) for each in refused] == [
        (Span(0, 1, 1), "FAILED_PRECONDITION"),
        (Span(0, 2, 9), "INVALID_ARGUMENT"),
        (Span(4, 1, 2), "FAILED_PRECONDITION"),
    ]


def test_buffer_is_full_by_bytes_too() -> None:
    of: DeliveryQueue[str] = DeliveryQueue(AckRules(TIMEOUT), buffer=Amount(100, 50))
    of.assign(0, StartPosition(0))
    of.fetched(0, [(0, "x" * 30), (1, "x" * 30)])
    assert of.full_partitions() == {0: 2}
    take(of, 1)
    assert (of.full_partitions(), of.has_room(0)) == ({}, False)
    take(of, 1)
    assert of.has_room(0)
