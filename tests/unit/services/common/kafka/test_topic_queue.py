"""The topic's queue: order of partitions, buffers, commits, and what each event of an assignment or a log leads to."""

from __future__ import annotations

from typing import Any

import pytest

from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.partition_queue import BEGINNING, END, MIN_SHARE_RECORDS, Delivery, ReadRules
from dexorder_common.kafka.topic_queue import TopicQueue

TIMEOUT = 100
KEPT = ReadRules(ack_timeout_ns=TIMEOUT, buffer_records=4)
READ_AGAIN = ReadRules(sparse=False, keep_records=False)


def queue_of(*partitions: int, rules: ReadRules = KEPT, **changed: Any) -> TopicQueue[str]:
    if changed:
        rules = ReadRules(**{"ack_timeout_ns": TIMEOUT, "buffer_records": 4, **changed})
    made: TopicQueue[str] = TopicQueue(rules)
    for partition in partitions:
        assert made.assign(partition, (0, ""), new_group=False) == 0
    return made


def fetch(into: TopicQueue[str], partition: int, *offsets: int, epoch: int = -1) -> bool:
    return into.fetched(partition, [(offset, f"{partition}:{offset}") for offset in offsets], epoch=epoch)


def pending(of: TopicQueue[str]) -> int:
    return sum(each.pending for each in of.progress().values())


def take(of: TopicQueue[str], count: int = 99, now_ns: int = 0) -> list[str]:
    found = [delivery for _ in range(count) for delivery in of.take(now_ns=now_ns)]
    assert all(each.record == f"{each.partition}:{each.offset}" for each in found)
    return [delivery.record for delivery in found]


# ---- deliveries


def test_partitions_take_turns_and_keep_their_order() -> None:
    of = queue_of(0, 1, 2)
    fetch(of, 0, 0, 1, 2)
    fetch(of, 1, 0)
    fetch(of, 2, 0, 1)
    assert take(of) == ["0:0", "1:0", "2:0", "0:1", "2:1", "0:2"]


def test_batch_is_filled_from_partition_to_partition() -> None:
    of = queue_of(0, 1, 2, rules=READ_AGAIN)
    fetch(of, 0, 0, 1, 2)
    fetch(of, 1, 0, 5)
    fetch(of, 2, 7)
    assert [each.record for each in of.take(4, now_ns=0)] == ["0:0", "0:1", "0:2", "1:0"]
    assert [each.record for each in of.take(4, now_ns=0)] == ["2:7", "1:5"]
    assert of.take(4, now_ns=0) == []
    assert of.in_flight() == 6


def test_due_record_comes_before_new_ones() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2)
    assert take(of, 2) == ["0:0", "0:1"]
    assert of.take(now_ns=TIMEOUT) == [Delivery(0, 0, "0:0", "timeout")]
    of.give_back(0, 0, now_ns=TIMEOUT)
    assert of.take(now_ns=TIMEOUT) == [Delivery(0, 0, "0:0", "given_back")]
    assert of.take(now_ns=TIMEOUT) == [Delivery(0, 1, "0:1", "timeout")]
    assert of.take(now_ns=TIMEOUT) == [Delivery(0, 2, "0:2")]


def test_partition_with_too_many_unacked_does_not_stop_the_others() -> None:
    of = queue_of(0, 1, max_pending=1)
    fetch(of, 0, 0, 1)
    fetch(of, 1, 0)
    assert take(of) == ["0:0", "1:0"]
    assert of.has_undelivered
    assert of.ack(0, 0)
    assert take(of) == ["0:1"]


def test_records_given_up_are_named() -> None:
    of = queue_of(0, 1, max_retries=0)
    fetch(of, 1, 0)
    take(of, 1)
    assert of.last_ack_deadline_ns() == TIMEOUT
    assert of.give_up(now_ns=TIMEOUT) == [(1, [0])]
    assert of.last_ack_deadline_ns() == 0


def test_ack_of_delivered_records_only_ignores_others() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1)
    assert not of.ack(0, 0, delivered_only=True)
    assert take(of, 1) == ["0:0"]
    assert of.ack(0, 0, delivered_only=True)


def test_nacked_records_that_are_not_kept_are_read_again() -> None:
    of = queue_of(0, 1, rules=READ_AGAIN)
    fetch(of, 0, 0, 1, 2, 3)
    fetch(of, 1, 0)
    of.take(9, now_ns=0)
    fetch(of, 0, 4)
    assert [of.give_back(0, offset, now_ns=5) for offset in (2, 1, 1, 9)] == [True, True, False, False]
    assert of.positions() == {0: 1}
    fetch(of, 0, 5)  # read before the consumer continues there
    of.repositioned(0, 1)
    assert of.positions() == {}
    fetch(of, 0, 1, 2, 3, 4, 5)
    assert [(d.offset, d.redelivery) for d in of.take(9, now_ns=6)] == [
        (1, "given_back"),
        (2, "given_back"),
        (4, ""),
        (5, ""),
    ]


def test_new_client_gets_everything_in_flight_again() -> None:
    of = queue_of(0, rules=READ_AGAIN)
    fetch(of, 0, 0, 1, 2)
    of.take(9, now_ns=0)
    of.ack(0, 1)
    of.give_back_all(now_ns=1)
    assert (of.positions(), of.in_flight()) == ({0: 0}, 0)
    of.repositioned(0, 0)
    of.ack(0, 0)  # late, of the first copy
    fetch(of, 0, 0, 1, 2)
    assert [d.offset for d in of.take(9, now_ns=1)] == [2]


# ---- pauses


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


def test_buffer_is_full_by_bytes_too() -> None:
    of = queue_of(0, buffer_records=100, buffer_bytes=50)
    of.fetched(0, [(0, "x" * 30), (1, "x" * 30)])
    assert of.full_partitions() == {0: 2}
    of.take(now_ns=0)
    assert (of.full_partitions(), of.has_room(0)) == ({}, False)
    of.take(now_ns=0)
    assert of.has_room(0)


def test_partitions_share_a_buffer_in_equal_parts() -> None:
    of = queue_of(0, 1, buffer_records=200, buffer_bytes=10_000, buffer_shared=True)
    of.fetched(0, [(n, "x") for n in range(99)])
    of.fetched(1, [(0, "x" * 4_999)])
    assert of.full_partitions() == {}
    of.fetched(0, [(99, "x")])
    of.fetched(1, [(1, "x")])
    assert of.full_partitions() == {0: 100, 1: 2}
    of.leave(1)
    assert of.full_partitions() == {}  # the other one has it all now
    for partition in range(1, 9):
        of.assign(partition, (0, ""), new_group=False)
    fetch(of, 1, *range(MIN_SHARE_RECORDS - 1))
    assert of.full_partitions() == {0: 100}
    fetch(of, 1, MIN_SHARE_RECORDS - 1)
    assert of.full_partitions() == {0: 100, 1: MIN_SHARE_RECORDS}


def test_full_partition_is_paused_when_it_is_not_emptied_or_another_needs_fetching() -> None:
    def full_queue(third: int) -> tuple[TopicQueue[str], dict[int, int]]:
        of = queue_of(0, 1, 2)
        for partition, count in enumerate((6, 4, third)):
            fetch(of, partition, *range(count))
        return of, of.full_partitions()

    of, full = full_queue(3)
    assert full == {0: 6, 1: 4}
    assert take(of, 1) == ["0:0"]
    assert of.pause(full) == [1]
    assert (of.paused, of.full_partitions()) == ({1}, {0: 5})
    of, full = full_queue(3)
    take(of, 5)
    assert of.pause(full) == [0, 1]  # 2 has half its buffer to fill
    of, full = full_queue(4)
    take(of, 1)
    assert of.pause(full, others=True) == [0, 1, 2]
    assert of.resume() == []
    take(of, 8)
    assert of.resume() == [1, 2]
    assert of.paused == {0}


@pytest.mark.parametrize("how", ["revoked", "assigned again at once"])
def test_pause_ends_with_an_assignment(how: str) -> None:
    of = queue_of(0)
    fetch(of, 0, *range(4))
    assert of.pause(of.full_partitions()) == [0]
    if how == "revoked":
        of.leave(0)
        assert (of.paused, of.resume()) == (set(), [])
    of.assign(0, (0, ""), new_group=False)
    assert of.paused == set()
    fetch(of, 0, *range(4))
    assert take(of) == ["0:0", "0:1", "0:2", "0:3"]


# ---- commits


def test_commits_are_the_changed_positions() -> None:
    of = queue_of(0, 1)
    assert of.commits() == {}
    fetch(of, 1, 0, 1)
    take(of, 2)
    of.ack(1, 1)
    assert of.commits() == {1: (0, "BB.mx2v")}
    of.committed({1: (0, "BB.mx2v"), 7: (1, "")})
    assert of.commits() == {}
    of.ack(1, 0)
    assert of.commits([0, 1]) == of.commits([1]) == {1: (2, "")}
    of.leave(1)
    assert of.commits([1]) == {}


def test_commit_without_sparse_acks_is_the_first_unacked_offset() -> None:
    of = queue_of(0, rules=READ_AGAIN)
    fetch(of, 0, 0, 1, 5, 6)
    of.take(9, now_ns=0)
    of.ack(0, 1)
    assert of.commits() == {}
    of.ack(0, 0)
    assert of.commits() == {0: (5, "")}  # a hole belongs to what is before it


def test_records_acked_before_a_restart_are_passed_once_they_are_fetched() -> None:
    """Otherwise the last ones would count as lag until another record comes."""
    of: TopicQueue[str] = TopicQueue(KEPT)
    assert of.assign(0, (0, "BBBB.p005"), new_group=False) == 0
    fetch(of, 0, 0, 1, 2, 3)
    assert take(of) == ["0:0", "0:2"]
    assert of.ack(0, 0) and of.ack(0, 2)
    assert of.commits() == {0: (4, "")}


def test_acks_of_records_that_do_not_exist_are_cut_at_the_logs_end() -> None:
    of: TopicQueue[str] = TopicQueue(KEPT)
    of.assign(0, (0, "BBBE.Ki9g"), new_group=False)  # 1 and 3 to 6
    fetch(of, 0, 0, 1, 2)
    assert of.log_end(0, 3)
    assert take(of) == ["0:0", "0:2"]
    fetch(of, 0, 3)
    assert take(of) == ["0:3"]


# ---- assignments


@pytest.mark.parametrize("start", [BEGINNING, END])
@pytest.mark.parametrize("first", ["record", "end"])
def test_new_group_starts_where_it_is_told_and_commits_that(start: int, first: str) -> None:
    of = queue_of(new_group_start=start)
    assert of.assign(3, None, new_group=True) == start
    assert (of.commits(), of.progress(), take(of)) == ({}, {}, [])
    assert fetch(of, 3, 9) if first == "record" else of.log_end(3, 9)
    assert of.commits() == {3: (9, "")}


def test_partition_added_later_starts_at_its_beginning() -> None:
    of = queue_of(0, new_group_start=END)
    assert of.assign(1, None, new_group=False) == BEGINNING


def test_late_event_of_a_revoked_partition_changes_nothing() -> None:
    of = queue_of(0, 1)
    fetch(of, 0, 0)
    take(of, 1)
    of.leave(0)
    of.leave(0)
    fetch(of, 0, 1)
    of.log_end(0, 2)
    of.give_back(0, 0, now_ns=0)
    assert (take(of), pending(of), of.partitions, of.is_assigned(0)) == ([], 0, [1], False)


def away_after_acks() -> TopicQueue[str]:
    """Return a queue whose partition went away with 1 and 3 acked, while the commit of 1 was in flight."""
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2, 3, 4)
    take(of, 4)
    of.ack(0, 1)
    assert of.commits() == {0: (0, "BB.mx2v")}
    of.ack(0, 3)
    of.leave(0)
    assert (pending(of), of.partitions) == (0, [])
    return of


@pytest.mark.parametrize(
    ("commit", "start", "then", "delivered"),
    [
        ((0, ""), 0, {0: (0, "BBBB.p005")}, ["0:0", "0:2", "0:4"]),
        ((0, "BB.mx2v"), 0, {0: (0, "BBBB.p005")}, ["0:0", "0:2", "0:4"]),
        ((2, ""), 2, {0: (2, "BB.tTqt")}, ["0:2", "0:4"]),  # another member continued
        ((0, "CD.Sg/x"), 0, {0: (0, "BE.Fn/2")}, ["0:0"]),
        ((0, "XX" + "\ufffd"), 0, {0: (0, "BBBB.p005")}, ["0:0", "0:2", "0:4"]),  # metadata of others
        ((5, ""), 5, {}, []),
    ],
)
def test_acks_count_when_a_partition_returns(
    commit: Commit, start: int, then: dict[int, Commit], delivered: list[str]
) -> None:
    of = away_after_acks()
    assert of.assign(0, commit, new_group=False) == start
    assert of.commits() == then
    fetch(of, 0, *range(start, 5)) if start < 5 else None
    assert take(of) == delivered


def test_acks_do_not_count_if_the_group_was_set_back_meanwhile() -> None:
    of: TopicQueue[str] = TopicQueue(KEPT)
    of.assign(0, (10, ""), new_group=False)
    fetch(of, 0, 10, 11)
    take(of)
    of.ack(0, 10)
    of.committed(of.commits())
    of.leave(0)
    assert of.assign(0, (5, ""), new_group=False) == 5
    fetch(of, 0, *range(5, 9))
    assert take(of) == ["0:5", "0:6", "0:7", "0:8"]


def test_records_in_flight_that_are_not_kept_are_not_delivered_again_when_a_partition_returns() -> None:
    """Numaflow must not get a record twice on one stream."""
    of = queue_of(0, rules=READ_AGAIN)
    fetch(of, 0, 0, 1, 2)
    of.take(9, now_ns=0)
    of.leave(0)
    of.ack(0, 1)
    assert of.commits() == {}
    assert of.assign(0, (0, ""), new_group=False) == 0
    fetch(of, 0, 0, 1, 2, 3)
    assert [d.offset for d in of.take(9, now_ns=0)] == [3]
    of.ack(0, 0)
    assert of.commits() == {0: (2, "")}


@pytest.mark.parametrize("commit", [(3, ""), None])
def test_acks_of_a_predecessor_count_once_the_partition_is_assigned(commit: Commit | None) -> None:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    assert [of.ack(0, offset) for offset in (1, 3, 4, 4)] == [True, True, True, False]
    assert of.commits() == {}
    of.assign(0, commit, new_group=commit is None)
    fetch(of, 0, *range(commit[0] if commit else 0, 7))
    assert [d.offset for d in of.take(9, now_ns=0)] == ([5, 6] if commit else [0, 2, 5, 6])


# ---- set offsets


def test_set_offsets_restart_a_partition() -> None:
    of = queue_of(0, 1)
    fetch(of, 0, 0, 1, 2, 3)
    assert take(of, 2) == ["0:0", "0:1"]
    of.ack(0, 0)
    of.restart(0, (5, "BB.UxZY"))
    assert (pending(of), of.last_ack_deadline_ns(), of.commits(), of.positions()) == (0, 0, {}, {0: 5})
    of.repositioned(0, 5)
    fetch(of, 0, 5, 6, 7)
    assert take(of) == ["0:5", "0:7"]
    of.ack(0, 1)  # delivered before the restart
    assert of.commits() == {}
    of.ack(0, 5)
    assert of.commits() == {0: (7, "")}


def test_late_acks_of_forgotten_records_skip_nothing() -> None:
    of = queue_of(0)
    fetch(of, 0, 0, 1, 2)
    assert take(of) == ["0:0", "0:1", "0:2"]
    of.restart(0, (1, ""))
    of.restart(0, (0, ""))
    of.repositioned(0, 0)
    for offset in range(3):
        assert of.ack(0, offset) is False
    fetch(of, 0, 0, 1, 2)
    assert take(of, 2) == ["0:0", "0:1"]
    assert of.ack(0, 1) is True  # delivered again
    assert take(of) == ["0:2"]
    assert of.commits() == {0: (0, "BB.mx2v")}


# ---- logs that go back


def at_500() -> TopicQueue[str]:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, (498, ""), new_group=False)
    fetch(of, 0, 498, 499, epoch=3)
    of.take(9, now_ns=0)
    of.ack(0, 498)
    of.committed(of.commits())
    return of


def test_record_below_the_position_means_that_the_log_went_back() -> None:
    of = at_500()
    assert not fetch(of, 0, 0, 1, epoch=0)
    assert (of.gone_back, of.positions()) == (1, {})  # the consumer is at the beginning already
    assert [d.offset for d in of.take(9, now_ns=0)] == [0, 1]
    assert of.ack(0, 0)
    assert not of.ack(0, 499)  # of the old log
    assert of.commits() == {0: (1, "")}


def together(into: TopicQueue[str], *records: str) -> bool:
    """Give records of partition 0 as Kafka's client does: their stamps are the letters before their offsets."""
    given = [(int(each.strip("abc")), f"0:{each.strip('abc')}") for each in records]
    letters = {f"0:{each.strip('abc')}": each[0] for each in records}
    return into.fetched(0, given, epoch=3, first_epoch=3, stamp_of=letters.__getitem__)


def test_records_of_a_call_that_are_read_again_after_a_rebalance_are_passed() -> None:
    """librdkafka pauses a partition for a rebalance at the place of before the call that returns its records."""
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, None, new_group=True)
    assert together(of, "a0")
    assert take(of) == ["0:0"] and of.ack(0, 0)
    assert together(of, "a0", "a1", "a2")
    assert take(of) == ["0:1", "0:2"]
    assert together(of, "a1", "a2"), "behind the record that was polled for itself; then in two pieces, and then more"
    assert together(of, "a3", "a4", "a5", "a6")
    assert together(of, "a4") and together(of, "a5")
    assert together(of, "a6", "a7")
    assert take(of) == [f"0:{n}" for n in range(3, 8)]
    assert (of.gone_back, of.positions(), of.commits()) == (0, {}, {0: (1, "")})


def test_the_record_that_was_compared_may_be_read_again_too() -> None:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, (5, ""), new_group=False, epoch=3)
    assert together(of, "a4") and together(of, "a4", "a5")
    assert together(of, "a5", "a6")
    assert take(of) == ["0:5", "0:6"] and of.gone_back == 0


@pytest.mark.parametrize("other", [("b3",), ("a3", "a4", "b6"), ("a0", "a1"), ("a2", "a3", "a4")])
def test_other_records_than_those_of_the_last_call_mean_that_the_log_went_back(other: tuple[str, ...]) -> None:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, None, new_group=True)
    assert together(of, "a0", "a1", "a2") and together(of, "a3", "a4", "a5", "a6")
    assert not together(of, *other)
    assert of.gone_back == 1


def test_a_log_that_ends_while_its_records_are_read_again_went_back() -> None:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, None, new_group=True)
    assert together(of, "a0", "a1", "a2", "a3") and together(of, "a0", "a1")
    assert not of.log_end(0, 2)
    assert of.positions() == {0: BEGINNING}


def test_end_of_log_below_the_position_means_that_the_log_went_back() -> None:
    of = at_500()
    assert not of.log_end(0, 0)
    assert of.positions() == {0: BEGINNING}
    of.repositioned(0, BEGINNING)
    assert of.log_end(0, 0)
    assert of.commits() == {0: (0, "")}
    fetch(of, 0, 0)
    assert [d.offset for d in of.take(9, now_ns=0)] == [0]


def test_older_epoch_means_that_the_log_went_back() -> None:
    of = at_500()
    assert not fetch(of, 0, 500, epoch=2)
    assert (of.take(9, now_ns=0), of.positions()) == ([], {0: BEGINNING})
    fetch(of, 0, 501, epoch=2)  # read before the consumer continues at the beginning
    of.repositioned(0, BEGINNING)
    assert fetch(of, 0, 0, 1, epoch=2)
    assert [d.offset for d in of.take(9, now_ns=0)] == [0, 1]


def test_older_epoch_of_records_read_again_is_no_sign() -> None:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, (0, ""), new_group=False)
    fetch(of, 0, 0, 1, epoch=3)
    fetch(of, 0, 2, epoch=4)
    of.take(9, now_ns=0)
    of.give_back(0, 0, now_ns=1)
    of.repositioned(0, *of.positions().values())
    assert fetch(of, 0, 0, 1, epoch=3)
    assert fetch(of, 0, 2, 3, epoch=4)
    assert [d.offset for d in of.take(9, now_ns=1)] == [0, 3]


def test_topic_created_again_is_read_from_its_beginning_in_every_partition() -> None:
    of = queue_of(0, 1, new_group_start=END)
    fetch(of, 0, 0)
    of.leave(1)
    of.go_back()
    assert of.positions() == {0: BEGINNING}
    assert of.assign(1, (7, ""), new_group=False) == BEGINNING  # a commit of the old topic
    assert of.assign(2, None, new_group=True) == BEGINNING


def test_commit_of_before_the_log_went_back_does_not_count() -> None:
    of = at_500()
    of.ack(0, 499)
    in_flight = of.commits()
    fetch(of, 0, 0, 1)
    of.committed(in_flight)
    of.leave(0)
    assert of.assign(0, (500, ""), new_group=False) == 0
    assert of.commits() == {0: (0, "")}
    of.committed({0: (0, "")})
    of.leave(0)
    assert of.assign(0, (1, ""), new_group=False) == 1


def test_topic_whose_commits_are_gone_was_created_again() -> None:
    of = queue_of(0, new_group_start=END)
    fetch(of, 0, 0, 1)
    take(of, 1)
    of.ack(0, 0)
    of.committed(of.commits())
    of.leave(0)
    assert of.was_delivered(0, 0)
    assert of.assign(0, None, new_group=True) == BEGINNING
    assert of.assign(1, None, new_group=True) == BEGINNING
    assert of.gone_back == 1


@pytest.mark.parametrize(("epoch", "went_back"), [(2, True), (3, False), (-1, False)])
def test_commit_of_a_later_epoch_than_the_log_means_that_it_went_back(epoch: int, went_back: bool) -> None:
    of: TopicQueue[str] = TopicQueue(KEPT)
    assert of.assign(0, (500, ""), new_group=False, epoch=3) == 499
    assert fetch(of, 0, 500, epoch=epoch) is not went_back
    assert of.positions() == ({0: BEGINNING} if went_back else {})


@pytest.mark.parametrize("more", [(), (500, 501)], ids=["alone", "with others"])
@pytest.mark.parametrize(("before", "went_back"), [(4, True), (3, False), (2, False), (-1, False)])
def test_record_before_the_commit_of_a_later_epoch_means_that_the_log_went_back_and_grew(
    before: int, went_back: bool, more: tuple[int, ...]
) -> None:
    """The leaders changed since the commit, which alone means nothing: a record below it is older than the commit."""
    of: TopicQueue[str] = TopicQueue(KEPT)
    assert of.assign(0, (500, ""), new_group=False, epoch=3) == 499
    assert of.fetched(0, [(o, "v") for o in (499, *more)], epoch=5, first_epoch=before) is not went_back
    assert of.gone_back == went_back
    if went_back:
        assert of.positions() == {0: BEGINNING}
        return
    assert [each.offset for each in of.take(9, now_ns=0)] == [*more], "the record before is not delivered"
    assert fetch(of, 0, 502 if more else 500, epoch=5) and not of.positions(), "later epochs are no reason"


@pytest.mark.parametrize(("end", "went_back"), [(498, True), (499, True), (500, False)])
def test_log_that_ends_before_the_commit_went_back_also_where_it_has_the_record_before(
    end: int, went_back: bool
) -> None:
    of: TopicQueue[str] = TopicQueue(KEPT)
    of.assign(0, (500, ""), new_group=False, epoch=3)
    assert of.log_end(0, end) is not went_back


def test_without_the_record_before_the_commit_there_is_nothing_to_compare() -> None:
    of: TopicQueue[str] = TopicQueue(KEPT)
    of.assign(0, (500, ""), new_group=False, epoch=3)
    assert of.fetched(0, [(502, "v")], epoch=5, first_epoch=5), "compaction has removed it"
    assert [each.offset for each in of.take(9, now_ns=0)] == [502]
    assert of.assign(1, (0, ""), new_group=False, epoch=3) == 0
    assert of.assign(2, (500, ""), new_group=False) == 500, "the commit has no epoch"


# ---- progress


def test_lag_counts_records_not_acked() -> None:
    of: TopicQueue[str] = TopicQueue(READ_AGAIN)
    of.assign(0, (3, ""), new_group=False)
    fetch(of, 0, 3, 4, 5)
    of.take(9, now_ns=0)
    of.ack(0, 4)
    starts, ends = {0: 3, 1: 10, 2: 0}, {0: 8, 1: 20, 2: 5}
    assert of.lag(starts, ends, {2: 1}) == (8 - 3 - 1) + (20 - 10) + (5 - 1)
    of.leave(0)
    assert of.lag(starts, ends, {0: 7, 1: 20, 2: 5}) == 1
