"""Rows of a UDF through a real gateway into a real topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from dexorder_common.model.udf import UdfOutput
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sinks import Sinks
from dexorder_udf.points import Point
from tests.fixtures import needs_missing_topics
from tests.gateway_thread import GatewayThread, records

pytestmark = pytest.mark.kafka
NOW_NS = 1_700_000_000 * 10**9


def rows(first: int, count: int) -> list[dict[str, Any]]:
    tags = {"ticker": "BTC/USDT.SIM"}
    points = [
        Point(NOW_NS + n, tags, {"mean": n / 2, "n": n, "far": float("inf")}, "ohlc", ("ticker",))
        for n in range(first, first + count)
    ]
    return rows_of(points, first)


def test_rows_are_records_with_their_numbers_in_order(
    kafka: str, shared_gateway: GatewayThread, kafka_topic: Callable[[int], str]
) -> None:
    topic = kafka_topic(1)
    sinks = Sinks("average", UdfOutput(topic=topic), shared_gateway.address)
    try:
        sinks.send(rows(0, 30))
        sinks.send(rows(29, 2))  # as after a crash: the last one again
    finally:
        sinks.close()
    found = records(kafka, topic)
    assert [int(dict(each.headers())["dx-sequence"]) for each in found] == [*range(30), 29, 30]
    assert {(each.key(), dict(each.headers())["dx-udf"]) for each in found} == {(b"ticker=BTC/USDT.SIM", b"average")}
    assert found[29].value() == found[30].value()
    assert json.loads(found[3].value()) == {
        "udf": "average",
        "sequence": 3,
        "time": "2023-11-14T22:13:20+00:00",
        "name": "ohlc",
        "group": "ticker=BTC/USDT.SIM",
        "tags": {"ticker": "BTC/USDT.SIM"},
        "fields": {"mean": 1.5, "n": 3, "far": "inf"},
    }


def test_a_record_that_kafka_refuses_is_returned_and_the_others_are_written(
    kafka: str, shared_gateway: GatewayThread, kafka_topic: Callable[[int], str]
) -> None:
    topic = kafka_topic(1)
    large = Point(NOW_NS, {"ticker": "BTC/USDT.SIM"}, {"text": "x" * 1_200_000}, "ohlc", ("ticker",))
    sinks = Sinks("average", UdfOutput(topic=topic), shared_gateway.address)
    (refused,) = sinks.send([*rows(0, 2), *rows_of([large], 2), *rows(3, 1)])
    sinks.close()
    assert refused.row["sequence"] == 2 and "larger than topic" in refused.reason
    assert [int(dict(each.headers())["dx-sequence"]) for each in records(kafka, topic)] == [0, 1, 3]


@needs_missing_topics
def test_a_topic_that_does_not_exist_is_named(shared_gateway: GatewayThread) -> None:
    sinks = Sinks("average", UdfOutput(topic="no-such-topic"), shared_gateway.address)
    with pytest.raises(grpc.RpcError, match=r"topic 'no-such-topic' does not exist"):
        sinks.send(rows(0, 1))
    sinks.close()
