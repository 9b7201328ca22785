"""Places to which rows of a UDF are sent on: a Kafka topic through the gateway, and a user's events.

At least once, after the rows are in the table, and in order. A row that is refused for its content is returned with the
reason, and does not block the others. A copy has the same sequence number. In a record it is the header
``dx-sequence``. In an event it is a part of the id, so the gateway drops a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToJson

from dexorder_common.model.udf import UdfOutput
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import error_text, is_too_large
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as event_pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as event_rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user_pb
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as record_pb
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2_grpc as record_rpc
from dexorder_spark.udf.rows import fields_of, text_of

Row = Mapping[str, Any]
_CALL_TIMEOUT_S = 10.0
_MAX_CONDITION = 500
MOST_ROWS = 1_000
"""Rows of a call, as the gateway takes them."""
MOST_EVENTS_PER_SECOND = 1_000
"""Half of what the gateway takes of a container; more would be refused, and be dead letters."""
_MOST_BYTES = 1024 * 1024
"""Bytes of a call, of which one row alone may have more."""


class Refused(NamedTuple):
    """A row that a place does not take, ``topic`` or ``user`` with its name, and the reason."""

    row: Row
    place: str
    reason: str


class Sinks:
    """Topic and user of one UDF; one thread sends, any may close. Without either, it does nothing."""

    def __init__(self, name: str, output: UdfOutput, gateway: str) -> None:
        """Take the gateway's address; the channel is opened when it is needed."""
        self._name = name
        self._output = output
        self._gateway = gateway
        self._channel: grpc.Channel | None = None

    @property
    def is_used(self) -> bool:
        """Return whether there is a topic or a user."""
        return bool(self._output.topic or self._output.user_id)

    @property
    def rows_per_second(self) -> float:
        """Return the largest rate at which rows may be sent."""
        return MOST_EVENTS_PER_SECOND if self._output.user_id else math.inf

    def send(self, rows: Sequence[Row]) -> list[Refused]:
        """Send at most ``MOST_ROWS`` rows on; return the refused ones once all others are acknowledged.

        Raises:
            grpc.RpcError: The gateway is away, or takes no row: it does not know the topic or the user's container.
        """
        self._channel = self._channel or open_sync_channel(self._gateway)
        refused: list[Refused] = []
        if self._output.topic:
            produce = record_rpc.RecordServiceStub(self._channel).ProduceMany
            for records in _parts([(row, record_of(self._name, row)) for row in rows]):
                refused += self._produce(produce, records)
        if self._output.user_id:
            refused += self._publish(event_rpc.EventPublisherServiceStub(self._channel), rows)
        return refused

    def _produce(self, produce: Callable[..., Any], records: Sequence[_Record]) -> Iterator[Refused]:
        topic = self._output.topic
        request = record_pb.ProduceManyRequest(topic=topic, records=[record for _, record in records])
        try:
            answer = produce(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if not is_too_large(error):
                raise
            if len(records) == 1:
                yield Refused(records[0][0], f"topic {topic}", error_text(error))
                return
            middle = len(records) // 2
            yield from self._produce(produce, records[:middle])
            yield from self._produce(produce, records[middle:])
        else:
            for each in answer.refused:
                yield Refused(records[each.index][0], f"topic {topic}", each.reason)

    def _publish(self, publisher: Any, rows: Sequence[Row]) -> Iterator[Refused]:
        """Send events in one stream, and wait for the first ack of each."""
        waiting = {event.event_id: (row, event) for row in rows for event in [event_of(self._name, self._output, row)]}
        requests = (event_pb.PublishManyRequest(event=event) for _, event in list(waiting.values()))
        call = publisher.PublishMany(requests, timeout=_CALL_TIMEOUT_S)
        try:
            while waiting:
                ack = next(call).ack
                found = waiting.pop(ack.event_id, None)
                if found is not None and ack.status == user_pb.ACK_ERROR:
                    yield Refused(found[0], f"user {self._output.user_id}", ack.error_message)
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the channel, which ends calls under way."""
        if self._channel is not None:
            self._channel.close()


_Record = tuple[Row, record_pb.NewRecord]


def _parts(records: Iterable[_Record]) -> Iterator[list[_Record]]:
    """Yield the records in parts of ``_MOST_BYTES``, or one record alone."""
    part: list[_Record] = []
    size = 0
    for each in records:
        more = each[1].ByteSize()
        if part and size + more > _MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    if part:
        yield part


def record_of(name: str, row: Row) -> record_pb.NewRecord:
    """Return the record of a row: JSON, with the group as its key."""
    sequence = record_pb.NewRecordHeader(name="dx-sequence", value=b"%d" % row["sequence"])
    return record_pb.NewRecord(
        key=str(row["group"]).encode(), value=text_of(name, row), headers=(_name_header(name), sequence)
    )


@cache
def _name_header(name: str) -> record_pb.NewRecordHeader:
    return record_pb.NewRecordHeader(name="dx-udf", value=name.encode())


def event_of(name: str, output: UdfOutput, row: Row) -> user_pb.UserEvent:
    """Return the event of a row: ALERT_TRIGGERED of priority NORMAL, with the fields in its condition."""
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
