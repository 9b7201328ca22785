"""Metrics of UDFs as a scrape shows them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from dexorder_common.model.udf import UdfState, UdfStatus
from dexorder_spark.metrics import UdfMetrics


def test_a_scrape_shows_the_statuses_of_now() -> None:
    statuses: list[UdfStatus] = []
    registry = CollectorRegistry()
    registry.register(UdfMetrics(lambda: statuses))
    statuses += [
        UdfStatus("a", UdfState.RUNNING, rows=7, fed=9, late=2, lag=3, restarts=1),
        UdfStatus("b", UdfState.FAILED, "its words"),
    ]
    lines = generate_latest(registry).decode().splitlines()
    shown = {line for line in lines if not line.startswith("#") and not line.endswith(" 0.0")}
    assert shown == {
        'dexorder_spark_udf_fed_total{udf="a"} 9.0',
        'dexorder_spark_udf_late_total{udf="a"} 2.0',
        'dexorder_spark_udf_restarts_total{udf="a"} 1.0',
        'dexorder_spark_udf_rows{udf="a"} 7.0',
        'dexorder_spark_udf_lag{udf="a"} 3.0',
        'dexorder_spark_udf_state{state="running",udf="a"} 1.0',
        'dexorder_spark_udf_state{state="failed",udf="b"} 1.0',
    }
    assert 'dexorder_spark_udf_state{state="running",udf="b"} 0.0' in lines
