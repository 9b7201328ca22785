"""Connections that flood, and the order of acks beside them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.user_events import Status
from dexorder_gateway.events.ingress.floods import FLOOD_NS, Floods, fewest_first
from dexorder_gateway.events.model import Ack


def test_a_connection_floods_from_a_refusal_on_for_some_time_and_a_publisher_never() -> None:
    floods = Floods()
    floods.refused(lambda _: None, 1)
    floods.refused(None, 1)
    assert not floods
    floods.refused(b"a", 1)
    floods.refused(b"b", FLOOD_NS)
    assert floods and floods.has_only([b"a", b"b"]) and not floods.has_only([b"a", b"c"])
    floods.forget(1 + FLOOD_NS)
    assert floods.has_only([b"a"]), "for a second it does"
    floods.forget(2 + FLOOD_NS)
    assert floods and not floods.has_only([b"a"])
    floods.forget(1 + 2 * FLOOD_NS)
    assert not floods


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=40))
def test_each_connections_acks_stay_in_order_and_fewer_are_before_more(senders: list[bytes]) -> None:
    acks = [(sender, Ack(str(number), Status.QUEUED)) for number, sender in enumerate(senders)]
    found = list(fewest_first(acks))
    for sender in set(senders):
        assert [ack for each, ack in found if each == sender] == [ack for each, ack in acks if each == sender]
    counts = Counter(senders)
    order = [counts[sender] for sender, _ in found]
    assert order == sorted(order) and len(found) == len(acks)
