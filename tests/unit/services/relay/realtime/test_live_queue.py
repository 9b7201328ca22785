"""Live data for one client: bounded, in order, and nothing is dropped without being counted."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dexorder_relay.realtime.live import Dropped, LiveItem, LiveKind, LiveQueue, SlowClientPolicy

COALESCE, DROP_OLDEST = SlowClientPolicy.COALESCE, SlowClientPolicy.DROP_OLDEST
TRADES, RUNNING, CLOSED = LiveKind("A", 0), LiveKind("A", 60), LiveKind("A", 60, True)


def fill(queue: LiveQueue[int], *kinds: LiveKind) -> None:
    for number, kind in enumerate(kinds):
        queue.put(LiveItem(kind, number * 10, number))


def test_nothing_is_dropped_while_the_client_reads_in_time() -> None:
    for policy in SlowClientPolicy:
        queue = LiveQueue[int](policy, 3)
        fill(queue, TRADES, RUNNING, TRADES)
        assert queue.take(2) == ({}, [LiveItem(TRADES, 0, 0), LiveItem(RUNNING, 10, 1)])
        assert queue.take(2) == ({}, [LiveItem(TRADES, 20, 2)])


def test_drop_oldest_keeps_the_last_ones_in_order() -> None:
    queue = LiveQueue[int](DROP_OLDEST, 2)
    fill(queue, TRADES, RUNNING, TRADES, TRADES, CLOSED)
    assert queue.take(9) == (
        {("A", 0): Dropped(2, 0, 20), ("A", 60): Dropped(1, 10, 10)},
        [LiveItem(TRADES, 30, 3), LiveItem(CLOSED, 40, 4)],
    )
    assert queue.take(9) == ({}, [])


def test_coalesce_keeps_the_newest_of_each_kind_and_a_closed_candle_beside_the_running_one() -> None:
    queue = LiveQueue[int](COALESCE, 5)
    fill(queue, CLOSED, RUNNING, TRADES, TRADES, RUNNING, TRADES)
    assert queue.take(9) == (
        {("A", 60): Dropped(1, 10, 10), ("A", 0): Dropped(1, 20, 20)},
        [LiveItem(CLOSED, 0, 0), LiveItem(TRADES, 30, 3), LiveItem(RUNNING, 40, 4), LiveItem(TRADES, 50, 5)],
    )


kinds = st.builds(LiveKind, st.sampled_from("ABC"), st.sampled_from([0, 60, 300]), st.booleans())


@given(
    st.sampled_from(SlowClientPolicy),
    st.integers(1, 8),
    st.lists(st.one_of(kinds, st.integers(1, 5)), max_size=200),
)
def test_every_item_is_sent_or_counted_and_the_queue_stays_bounded(
    policy: SlowClientPolicy, size: int, steps: list[LiveKind | int]
) -> None:
    """A number reads so many items; everything is added with its index as time."""
    queue, dropped = LiveQueue[int](policy, size), Counter[tuple[str, int]]()
    put: list[LiveItem[int]] = []
    sent: list[LiveItem[int]] = []
    for step in [*steps, 10**6]:
        if isinstance(step, int):
            lost, items = queue.take(step)
            dropped.update({key: each.count for key, each in lost.items()})
            assert all(each.count > 0 and each.start_ns <= each.end_ns for each in lost.values())
            sent += items
        else:
            item = LiveItem(step, len(put), len(put))
            put.append(item)
            queue.put(item)
        bound = size if policy is DROP_OLDEST else max(size, 2 * len({item.kind for item in put}))
        assert len(queue.items) <= bound
    assert [item.message for item in sent] == sorted(item.message for item in sent)
    assert Counter(item.kind[:2] for item in put) - Counter(item.kind[:2] for item in sent) == dropped
    for kind in {item.kind for item in put}:  # the newest of each kind always arrives under COALESCE
        if policy is COALESCE:
            assert [item for item in put if item.kind == kind][-1] in sent
