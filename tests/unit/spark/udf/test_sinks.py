"""Rows that are sent on: in the order of their group, groups beside each other, and without a row that is refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.udf import UdfOutput
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy_pb
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sinks import Sinks
from dexorder_udf.points import Point


def refused(code: grpc.StatusCode, details: str) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def sent(
    monkeypatch: pytest.MonkeyPatch, refusals: dict[int, grpc.RpcError], groups: Sequence[str]
) -> tuple[Any, list[str]]:
    """Send a row for each group in turn; return the sequences by group, and the lines."""
    found: dict[bytes, list[int]] = {}
    lines: list[str] = []
    both = threading.Barrier(len(set(groups)))

    class Pixy:
        def __init__(self, channel: object) -> None: ...

        def Produce(self, request: pixy_pb.ProdRq, timeout: float) -> None:
            sequence = int({each.key: each.value for each in request.headers}["dx-sequence"])
            if sequence < both.parties:
                both.wait(10)  # breaks unless each group has a row under way
            if sequence in refusals:
                raise refusals[sequence]
            found.setdefault(request.key_value, []).append(sequence)

    monkeypatch.setattr("dexorder_spark.udf.sinks.pixy_rpc.KafkaPixyStub", Pixy)
    sinks = Sinks("u", UdfOutput(topic="t"), "127.0.0.1:1", lines.append)
    points = [Point(1, {"g": each}, {"x": 1}, "n", ("g",)) for each in groups]
    try:
        sinks.send(rows_of(points, 0))
    finally:
        sinks.close()
    return found, lines


def test_groups_are_sent_beside_each_other_and_each_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found, lines = sent(monkeypatch, {}, "abcabcabc")
    assert found == {b"g=a": [0, 3, 6], b"g=b": [1, 4, 7], b"g=c": [2, 5, 8]} and not lines


def test_a_row_that_is_too_large_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    large = refused(grpc.StatusCode.INVALID_ARGUMENT, "a record of 9 bytes is larger than max")
    found, (line,) = sent(monkeypatch, {3: large}, "ababab")
    assert found == {b"g=a": [0, 2, 4], b"g=b": [1, 5]}
    assert "row 3 of group 'g=b' is left out" in line and "larger than max" in line


def test_a_topic_that_is_missing_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = refused(grpc.StatusCode.INVALID_ARGUMENT, "topic 't' does not exist")
    with pytest.raises(InvalidRequest, match="does not exist"):
        sent(monkeypatch, {0: missing}, "ab")
