"""Rows of a UDF that are sent on: to a Kafka topic through the gateway, and to a user as events.

At least once, in order, after the rows are in the table. A copy has the same sequence number: in a record it is the
header ``dx-sequence``; of events, whose id it is a part of, the gateway drops a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import tenacity
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.udf import UdfOutput
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import error_text, is_refused, is_too_large
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as event_pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as event_rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc
from dexorder_spark.udf.rows import fields_of, text_of

Row = Mapping[str, Any]
_CALL_TIMEOUT_S = 10.0
_ATTEMPTS = 5
_MAX_CONDITION = 500


class Sinks:
    """Topic and user of one UDF; one thread uses it. Without either, it does nothing."""

    def __init__(self, name: str, output: UdfOutput, gateway: str) -> None:
        """Take the gateway's address; the channel is opened when it is needed."""
        self._name = name
        self._output = output
        self._gateway = gateway
        self._channel: grpc.Channel | None = None

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows on and return when all are acknowledged.

        Raises:
            InvalidRequest: The gateway refuses a record or an event, and would refuse it again.
            grpc.RpcError: The gateway is away.
        """
        if not (self._output.topic or self._output.user_id):
            return
        self._channel = self._channel or open_sync_channel(self._gateway)
        pixy, publisher = pixy_rpc.KafkaPixyStub(self._channel), event_rpc.EventPublisherServiceStub(self._channel)
        for row in rows:
            if self._output.topic:
                self._call(pixy.Produce, record_of(self._name, self._output.topic, row))
            if self._output.user_id:
                event = event_of(self._name, self._output, row)
                answer = self._call(publisher.Publish, event_pb.PublishRequest(event=event))
                if answer.ack.status == user_pb.ACK_ERROR:
                    raise InvalidRequest(f"the gateway refuses its event {event.event_id}: {answer.ack.error_message}")

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()

    def _call(self, call: Callable[..., Any], request: Message) -> Any:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_succeed),
            wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=1.0, jitter=0.1),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            reraise=True,
        )
        try:
            return attempts(call, request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if _may_succeed(error):
                raise
            raise InvalidRequest(f"the gateway refuses its output: {error_text(error)}") from error


def _may_succeed(error: BaseException) -> bool:
    refused = is_refused(error) or is_too_large(error)
    return isinstance(error, grpc.RpcError) and not refused


def record_of(name: str, topic: str, row: Row) -> pixy_pb.ProdRq:
    """Return the record of a row: JSON, with the group as its key."""
    headers = {"dx-udf": name, "dx-sequence": str(row["sequence"])}
    return pixy_pb.ProdRq(
        topic=topic,
        key_value=str(row["group"]).encode(),
        key_undefined=not row["group"],
        message=text_of(name, row),
        headers=[pixy_pb.RecordHeader(key=key, value=value.encode()) for key, value in headers.items()],
    )


def event_of(name: str, output: UdfOutput, row: Row) -> user_pb.UserEvent:
    """Return the event of a row: ALERT_TRIGGERED of priority NORMAL, whose condition shows the fields."""
    time_ms = row["time"] // 1_000
    fields = ", ".join(f"{field} {value}" for field, value in fields_of(row).items())
    condition = f"{output.title or name}: {fields}"[:_MAX_CONDITION]
    payload = user_pb.AlertEventPayload(
        alert_id=f"udf:{name}", symbol=row["ticker"] or str(row["group"]), condition=condition, timestamp=time_ms
    )
    return user_pb.UserEvent(
        user_id=output.user_id,
        event_id=f"udf-{name}-{row['sequence']}",
        timestamp=time_ms,
        event_type=user_pb.ALERT_TRIGGERED,
        payload=_json(payload),
        delivery=user_pb.DeliverySpec(priority=user_pb.NORMAL),
    )


def _json(payload: user_pb.AlertEventPayload) -> bytes:
    return MessageToJson(payload, preserving_proto_field_name=True, indent=None).encode()
