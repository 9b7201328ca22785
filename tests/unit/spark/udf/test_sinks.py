"""Rows on their way to a topic and a user: the size of calls, refused rows, and what stops all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dexorder_common.model.udf import UdfOutput
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as event_pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user_pb
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as pb
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sinks import Sinks
from dexorder_udf.points import Point


def failure(code: grpc.StatusCode, details: str) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def rows(count: int, size: int = 1) -> list[dict[str, Any]]:
    return rows_of([Point(n, {"g": "a"}, {"text": "x" * size}, "n", ("g",)) for n in range(count)], 0)


def sequences(request: pb.ProduceManyRequest) -> list[int]:
    return [int({h.name: h.value for h in each.headers}["dx-sequence"]) for each in request.records]


class Gateway:
    """Stubs of both services."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.most_bytes = 1 << 30
        self.failure: grpc.RpcError | None = None
        self.refuse: set[str] = set()
        self.events: list[str] = []

    def ProduceMany(self, request: pb.ProduceManyRequest, timeout: float) -> pb.ProduceManyResponse:
        if self.failure:
            raise self.failure
        if request.ByteSize() > self.most_bytes:
            raise failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 8)")
        self.calls.append(sequences(request))
        refused = [
            pb.RefusedRecord(index=n, reason="no") for n, s in enumerate(self.calls[-1]) if str(s) in self.refuse
        ]
        return pb.ProduceManyResponse(refused=refused)

    def PublishMany(self, requests: Iterator[event_pb.PublishManyRequest], timeout: float) -> Any:
        gateway = self

        class Call:
            def __next__(self) -> event_pb.PublishManyResponse:
                name = next(requests).event.event_id
                gateway.events.append(name)
                status = user_pb.ACK_ERROR if name in gateway.refuse else user_pb.QUEUED
                ack = user_pb.EventAck(event_id=name, status=status, error_message="unknown user")
                return event_pb.PublishManyResponse(ack=ack)

            def cancel(self) -> None: ...

        return Call()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    made = Gateway()
    monkeypatch.setattr("dexorder_spark.udf.sinks.record_rpc.RecordServiceStub", lambda channel: made)
    monkeypatch.setattr("dexorder_spark.udf.sinks.event_rpc.EventPublisherServiceStub", lambda channel: made)
    return made


def test_large_rows_go_in_several_calls_in_order(gateway: Gateway) -> None:
    assert Sinks("u", UdfOutput(topic="t"), "127.0.0.1:1").send(rows(5, size=400_000)) == []
    assert gateway.calls == [[0, 1], [2, 3], [4]]


def test_a_gateway_that_takes_less_gets_less_and_one_row_that_is_too_large_is_refused(gateway: Gateway) -> None:
    gateway.most_bytes = 700
    (refused,) = Sinks("u", UdfOutput(topic="t"), "127.0.0.1:1").send([*rows(3), *rows_of(_large(), 3), *rows(0)])
    assert [n for call in gateway.calls for n in call] == [0, 1, 2]
    assert (refused.row["sequence"], refused.place) == (3, "topic t") and "larger than max" in refused.reason


def _large() -> list[Point]:
    return [Point(9, {"g": "a"}, {"text": "x" * 2_000}, "n", ("g",))]


def test_a_refused_record_and_a_refused_event_are_returned_with_their_reasons(gateway: Gateway) -> None:
    gateway.refuse = {"1", "udf-u-2"}
    found = Sinks("u", UdfOutput(topic="t", user_id="alice"), "127.0.0.1:1").send(rows(4))
    assert [(each.row["sequence"], each.place, each.reason) for each in found] == [
        (1, "topic t", "no"),
        (2, "user alice", "unknown user"),
    ]
    assert gateway.calls == [[0, 1, 2, 3]] and gateway.events == [f"udf-u-{n}" for n in range(4)]


def test_a_topic_that_is_missing_refuses_no_row(gateway: Gateway) -> None:
    gateway.failure = failure(grpc.StatusCode.INVALID_ARGUMENT, "topic 't' does not exist")
    with pytest.raises(grpc.RpcError, match="does not exist"):
        Sinks("u", UdfOutput(topic="t"), "127.0.0.1:1").send(rows(2))
