"""Quotas of check 23, with a manual clock."""

from __future__ import annotations

from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.ingress.containers import Container, ContainerQuota, ContainerQuotas

SECOND = 1_000_000_000
SETTINGS = EventsSettings(soft_events_per_second=10, hard_events_per_second=20, hard_queued_events=1000)
A, B = Container("a", None), Container("b", None)


def test_flood_is_delayed_then_refused_and_critical_never() -> None:
    quotas = ContainerQuotas(SETTINGS)
    normal = [quotas.take(A, Priority.NORMAL, 0) for _ in range(25)]
    assert [v.soft for v in normal] == [False] * 10 + [True] * 15
    assert [v.refused for v in normal] == [False] * 20 + [True] * 5
    for _ in range(50):
        verdict = quotas.take(A, Priority.CRITICAL, 0)
        assert not verdict.refused and not verdict.soft
        assert verdict.above
    assert [v.above for v in normal] == [v.refused for v in normal]
    other = quotas.take(B, Priority.NORMAL, 0)  # another container has its own quota
    assert not other.soft and not other.above


def test_quota_refills_up_to_one_second_of_its_rate() -> None:
    quotas = ContainerQuotas(SETTINGS)
    for _ in range(30):
        quotas.take(A, Priority.NORMAL, 0)
    half = [quotas.take(A, Priority.NORMAL, SECOND // 2) for _ in range(12)]
    assert [v.soft for v in half].count(False) == 5 and [v.refused for v in half].count(False) == 10
    later = [quotas.take(A, Priority.NORMAL, 3600 * SECOND) for _ in range(30)]
    assert [v.refused for v in later].count(False) == 20


def test_queued_events_count_and_a_container_may_have_its_own_limits() -> None:
    quotas = ContainerQuotas(SETTINGS)
    small = Container("small", None, ContainerQuota(queued_events=2, soft_events_per_second=1))
    assert not quotas.take(small, Priority.NORMAL, 0).soft
    assert quotas.take(small, Priority.NORMAL, 0).soft
    quotas.queued["small"] = 2
    full = quotas.take(small, Priority.NORMAL, SECOND)
    assert full.refused and not full.above  # that is not a flood
    assert not quotas.take(small, Priority.CRITICAL, SECOND).refused
    quotas.queued["small"] -= 1
    assert not quotas.take(small, Priority.NORMAL, SECOND).refused


def test_slow_rate_admits_one_event_at_the_start() -> None:
    slow = ContainerQuotas(EventsSettings(soft_events_per_second=0.1, hard_events_per_second=0.1))
    assert not slow.take(A, Priority.NORMAL, 0).refused
    assert slow.take(A, Priority.NORMAL, 9 * SECOND).refused
    assert not slow.take(A, Priority.NORMAL, 10 * SECOND).refused
