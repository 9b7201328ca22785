"""Records that are taken and acked many at once are in the same states as records one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dexorder_common.kafka.partition_queue import ReadRules
from dexorder_common.kafka.topic_queue import TopicQueue
from dexorder_common.model.errors import Exhausted

RULES = {
    "kept": ReadRules(ack_timeout_ns=50, max_pending=12),
    "read again": ReadRules(sparse=False, keep_records=False),
}


def one_by_one(of: TopicQueue[str], partition: int) -> None:
    """Have a queue take its records through the table of states, a record at a time."""
    of._partitions[partition]._take_new = lambda *_: []  # type: ignore[method-assign]


def acked(of: TopicQueue[str], pairs: list[tuple[int, int]], *, at_once: bool) -> Any:
    try:
        return of.ack_all(pairs) if at_once else sum([of.ack(*pair) for pair in pairs])
    except Exhausted as error:
        return type(error)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("seed", range(200))
def test_both_ways_agree(rules: ReadRules, seed: int) -> None:
    chance, now_ns, end = random.Random(seed), 0, 0
    batched, single = queues = TopicQueue[str](rules), TopicQueue[str](rules)
    for queue in queues:
        assert queue.assign(0, (0, ""), new_group=False) == 0
    one_by_one(single, 0)
    for _ in range(40):
        now_ns += chance.randrange(30)
        what = chance.choice(["fetch", "take", "take", "ack", "ack", "ack early", "give back"])
        if what == "fetch":
            offsets = sorted(chance.sample(range(end, end + 12), chance.randrange(1, 9)))  # with gaps
            end = offsets[-1] + 1
            for queue in queues:
                queue.fetched(0, [(offset, f"record {offset}") for offset in offsets])
        elif what == "take":
            limit = chance.randrange(1, 20)
            assert batched.take(limit, now_ns=now_ns) == single.take(limit, now_ns=now_ns)
        elif what == "give back":
            offset = chance.randrange(end + 1)
            found = {queue.give_back(0, offset, now_ns=now_ns) for queue in queues}
            assert len(found) == 1
            for queue in queues:
                for partition, position in queue.positions().items():
                    queue.repositioned(partition, position)
                    later = range(position, end)
                    queue.fetched(0, [(each, f"record {each}") for each in later]) if later else None
        else:
            below = single._partitions[0].tracker.next_offset if what == "ack" else end + 5  # type: ignore[union-attr]
            pairs = [(0, chance.randrange(below)) for _ in range(chance.randrange(1, 15))] if below else []
            if pairs:
                assert acked(batched, pairs, at_once=True) == acked(single, pairs, at_once=False)
        assert batched.progress() == single.progress()
        assert batched.commits() == single.commits()
        assert batched.in_flight() == single.in_flight()
        assert batched.lag({0: 0}, {0: end}, {}) == single.lag({0: 0}, {0: end}, {})
        parts = [queue._partitions[0] for queue in queues]
        assert parts[0].length_bytes == parts[1].length_bytes and parts[0]._kept == parts[1]._kept


def test_acks_of_several_partitions_and_of_one_that_was_never_assigned() -> None:
    queue = TopicQueue[str](RULES["read again"])
    for partition in (0, 1):
        queue.assign(partition, (0, ""), new_group=False)
        queue.fetched(partition, [(offset, "record") for offset in range(4)])
    assert len(queue.take(8, now_ns=0)) == 8
    assert queue.ack_all([(0, 0), (1, 3), (0, 1), (7, 5), (0, 0)]) == 4
    assert queue.commits() == {0: (2, "")}
    assert queue.ack_all([]) == 0
