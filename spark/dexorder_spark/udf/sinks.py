"""Rows of a UDF that are sent on: to a Kafka topic through the gateway, and to a user as events.

At least once, in the order of their group, after the rows are in the table; groups are sent beside each other. A row
that is refused for its content is left out and reported, and holds up no other one. A copy has the same sequence
number: in a record it is the header ``dx-sequence``; of events, whose id it is a part of, the gateway drops a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import structlog
import tenacity
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from dexorder_common.model.errors import Code, InvalidRequest
from dexorder_common.model.udf import UdfOutput
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import code_of, error_text, is_refused, is_too_large
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
_NO_TOPIC = "does not exist"
"""Part of the gateway's refusal of a topic, whose code is that of a refused record, as in Kafka-Pixy."""
_MOST_UNDER_WAY = 32
"""Groups of which a row is under way at once."""
log = structlog.get_logger(__name__)


class Sinks:
    """Topic and user of one UDF; one thread uses it. Without either, it does nothing."""

    def __init__(
        self, name: str, output: UdfOutput, gateway: str, on_log: Callable[[str], None] = lambda line: None
    ) -> None:
        """Take the gateway's address; the channel is opened when it is needed.

        Args:
            on_log: Gets a line for each row that is left out.
        """
        self._name = name
        self._on_log = on_log
        self._output = output
        self._gateway = gateway
        self._channel: grpc.Channel | None = None

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows on and return when all are acknowledged.

        Raises:
            InvalidRequest: The gateway refuses the topic or the user, and would refuse every row.
            grpc.RpcError: The gateway is away.
        """
        if not (self._output.topic or self._output.user_id):
            return
        self._channel = self._channel or open_sync_channel(self._gateway)
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(str(row["group"]), []).append(row)
        with ThreadPoolExecutor(min(len(groups), _MOST_UNDER_WAY) or 1) as pool:
            for done in [pool.submit(self._send_group, self._channel, each) for each in groups.values()]:
                done.result()

    def _send_group(self, channel: grpc.Channel, rows: Sequence[Row]) -> None:
        pixy, publisher = pixy_rpc.KafkaPixyStub(channel), event_rpc.EventPublisherServiceStub(channel)
        for row in rows:
            if self._output.topic:
                try:
                    self._call(pixy.Produce, record_of(self._name, self._output.topic, row))
                except RowRefused as error:
                    self._left_out(row, str(error))
            if self._output.user_id:
                self._publish(publisher, row)

    def _publish(self, publisher: Any, row: Row) -> None:
        event = event_of(self._name, self._output, row)
        answer = self._call(publisher.Publish, event_pb.PublishRequest(event=event))
        if answer.ack.status == user_pb.ACK_ERROR:
            raise InvalidRequest(f"the gateway refuses its event {event.event_id}: {answer.ack.error_message}")

    def _left_out(self, row: Row, reason: str) -> None:
        log.error("a row of a UDF is left out of its topic", udf=self._name, sequence=row["sequence"], reason=reason)
        self._on_log(f"dexorder: row {row['sequence']} of group {row['group']!r} is left out of the topic: {reason}")

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
            is_content = is_too_large(error) or code_of(error) is Code.INVALID_ARGUMENT
            kind = RowRefused if is_content and _NO_TOPIC not in error_text(error) else InvalidRequest
            raise kind(f"the gateway refuses its output: {error_text(error)}") from error


class RowRefused(InvalidRequest):
    """A row can't be sent on; others can."""


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
