"""Lifetime of counters, and the calculation of lag."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.kafka.partition_queue import QueueProgress
from dexorder_gateway.kafkapixy.metrics import KEPT_SECONDS, ClusterMetrics, KafkaMetrics, lag_of


class Clock:
    """Clock that stands still until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_counts_outlive_their_subscription_for_a_while() -> None:
    clock = Clock()
    metrics = ClusterMetrics(clock)
    metrics.opened("g", "t").consumed = 3
    metrics.closed("g", "t")
    clock.now_s = KEPT_SECONDS
    assert [(name, counts.consumed) for name, counts in metrics.read_counts()] == [(("g", "t"), 3)]
    clock.now_s += 1
    assert metrics.read_counts() == []
    assert metrics.opened("g", "t").consumed == 0


def test_counts_continue_when_the_group_returns_in_time() -> None:
    clock = Clock()
    metrics = ClusterMetrics(clock)
    metrics.opened("g", "t").consumed = 3
    metrics.closed("g", "t")
    clock.now_s = KEPT_SECONDS
    assert metrics.opened("g", "t").consumed == 3
    clock.now_s = 9 * KEPT_SECONDS
    assert len(metrics.read_counts()) == 1


def test_next_subscription_shares_the_counts_of_one_that_is_leaving() -> None:
    clock = Clock()
    metrics = ClusterMetrics(clock)
    leaving, joining = metrics.opened("g", "t"), metrics.opened("g", "t")
    metrics.closed("g", "t")
    clock.now_s = 2 * KEPT_SECONDS
    metrics.opened("g", "other")
    assert leaving is joining is metrics.opened("g", "t")


@pytest.mark.parametrize(
    ("progress", "log_end", "lag"),
    [
        (QueueProgress(0, 5, 5), 5, 0),
        (QueueProgress(0, 5, 5), 9, 4),
        (QueueProgress(2, 3, 7), 9, 6),
        (QueueProgress(0, 7, 7), 5, 0),  # the end was queried before the last two were written
        (QueueProgress(1, 6, 7), 5, 1),
    ],
)
def test_lag_counts_from_the_lowest_unacked_record(progress: QueueProgress, log_end: int, lag: int) -> None:
    assert lag_of(progress, log_end) == lag


def test_series_of_a_topic_begin_at_zero() -> None:
    """Otherwise the first failure would not show as an increase."""
    registry = CollectorRegistry()
    metrics = KafkaMetrics(registry).cluster("c")
    metrics.declare("t", "sync")
    metrics.produce_failed["t", "sync"] += 1
    metrics.declare("t", "sync")
    labels = {"cluster": "c", "topic": "t", "mode": "sync"}
    assert registry.get_sample_value("dexorder_gateway_records_produced_total", labels) == 0
    assert registry.get_sample_value("dexorder_gateway_records_produce_failed_total", labels) == 1
