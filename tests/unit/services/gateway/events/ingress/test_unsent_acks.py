"""Acks that connections do not take at once, with a socket whose connections have the room that the test gives."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_gateway.events.ingress import unsent_acks
from dexorder_gateway.events.ingress.unsent_acks import Taken, UnsentAcks

A, B = b"a", b"b"


class Pipes:
    """Connections with limited room, and what each got."""

    def __init__(self) -> None:
        self.room: Counter[bytes] = Counter()
        self.gone: set[bytes] = set()
        self.got: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self.dropped: Counter[str] = Counter()
        self.acks = UnsentAcks(self._send, lambda reason: self.dropped.update([reason]))

    def _send(self, routing_id: bytes, ack: bytes) -> Taken:
        if routing_id in self.gone:
            return Taken.GONE
        if not self.room[routing_id]:
            return Taken.FULL
        self.room[routing_id] -= 1
        self.got[routing_id].append(ack)
        return Taken.SENT


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.booleans(), st.integers(0, 3)), max_size=60))
def test_each_connection_gets_all_acks_once_and_in_order(steps: list[tuple[bytes, bool, int]]) -> None:
    pipes, given_acks = Pipes(), defaultdict[bytes, list[bytes]](list)
    for number, (connection, sends, room) in enumerate(steps):
        pipes.room[connection] += room
        if sends:
            given_acks[connection].append(b"%d" % number)
            pipes.acks.send(connection, b"%d" % number)
        else:
            pipes.acks.send_again()
        for each, got in pipes.got.items():
            assert got == given_acks[each][: len(got)]
    pipes.room.update({A: 100, B: 100})
    pipes.acks.send_again()
    assert pipes.got == {each: acks for each, acks in given_acks.items() if acks}
    assert len(pipes.acks) == 0 and not pipes.dropped


def test_acks_of_a_connection_that_is_gone_are_dropped_and_counted() -> None:
    pipes = Pipes()
    for number in range(3):
        pipes.acks.send(A, b"%d" % number)
    pipes.gone.add(A)
    pipes.acks.send_again()
    pipes.acks.send(A, b"3")
    assert (len(pipes.acks), pipes.dropped) == (0, {"container_gone": 4})


def test_a_connection_that_reads_nothing_keeps_its_limit_and_takes_no_room_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unsent_acks, "MAX_ACKS", 10)
    monkeypatch.setattr(unsent_acks, "MAX_ALL_ACKS", 15)
    pipes = Pipes()
    for number in range(12):
        pipes.acks.send(A, b"%d" % number)
    assert (pipes.acks.is_full(A), len(pipes.acks), pipes.dropped) == (True, 10, {"container_full": 2})
    for number in range(6):
        pipes.acks.send(B, b"%d" % number)
    assert not pipes.acks.is_full(A), "the connection with the most acks lost them"
    assert (len(pipes.acks), pipes.dropped) == (6, {"container_full": 12})
    pipes.room[B] = 6
    pipes.acks.send_again()
    assert pipes.got == {B: [b"%d" % number for number in range(6)]}
