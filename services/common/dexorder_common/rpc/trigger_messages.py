"""Conversion between the values of ``dexorder_common/model/triggers.py`` and protobuf messages, for both ends.

Decoding does not validate a client's trigger: ``dexorder_relay/state/triggers.py`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.triggers import (
    Alert,
    EventKind,
    RegisteredTrigger,
    Trigger,
    TriggerEdit,
    TriggerEvent,
    TriggerState,
    Value,
)
from dexorder_common.model.user_events import Channel, Preference, Priority
from dexorder_protos.dexorder.events.v1 import user_events_pb2
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as triggers_pb2

_TIMESTAMP = "TIMESTAMP"
_NANOSECONDS = 1_000_000_000


def encode_request(trigger: Trigger) -> ingest_pb2.CEPTriggerRequest:
    """Return the given message of a trigger."""
    return ingest_pb2.CEPTriggerRequest(
        trigger_id=trigger.trigger_id,
        sql_pattern=trigger.sql,
        tickers=trigger.tickers,
        callback_id=trigger.callback_id or None,
        parameters=trigger.parameters,
    )


def decode_request(message: ingest_pb2.CEPTriggerRequest, client_id: str = "", alert: Alert | None = None) -> Trigger:
    """Return a trigger."""
    return Trigger(
        message.trigger_id,
        message.sql_pattern,
        tuple(message.tickers),
        message.callback_id,
        dict(message.parameters),
        client_id,
        alert,
    )


def encode_alert(alert: Alert | None) -> triggers_pb2.TriggerAlert | None:
    """Return the message of a delivery; None without one."""
    if alert is None:
        return None
    channels = [
        user_events_pb2.ChannelPreference(
            channel=each.channel,  # type: ignore[arg-type]  # the same numbers
            only_if_active=each.only_if_active,
        )
        for each in alert.channels
    ]
    delivery = user_events_pb2.DeliverySpec(
        priority=alert.priority,  # type: ignore[arg-type]  # the same numbers
        channels=channels,
    )
    return triggers_pb2.TriggerAlert(user_id=alert.user_id, delivery=delivery)


def decode_alert(message: triggers_pb2.TriggerAlert) -> Alert:
    """Return a delivery; InvalidRequest for an unknown priority or channel."""
    delivery = message.delivery
    if delivery.priority not in [*Priority]:
        raise InvalidRequest(f"alert.delivery.priority {delivery.priority} is not one of 0 to {max(Priority)}")
    for each in delivery.channels:
        if each.channel not in [*Channel]:
            raise InvalidRequest(f"alert.delivery.channels has {each.channel}, which is not one of 0 to {max(Channel)}")
    channels = tuple(Preference(Channel(each.channel), each.only_if_active) for each in delivery.channels)
    return Alert(message.user_id, Priority(delivery.priority), channels)


def decode_registration(message: triggers_pb2.RegisterTriggerRequest) -> Trigger:
    """Return the trigger that a client registers; InvalidRequest as ``decode_alert``."""
    alert = decode_alert(message.alert) if message.HasField("alert") else None
    return decode_request(message.trigger, message.client_id, alert)


def encode_registration(trigger: Trigger) -> triggers_pb2.RegisterTriggerRequest:
    """Invert ``decode_registration``."""
    return triggers_pb2.RegisterTriggerRequest(
        trigger=encode_request(trigger), client_id=trigger.client_id or None, alert=encode_alert(trigger.alert)
    )


def decode_edit(message: triggers_pb2.EditTriggerRequest) -> TriggerEdit:
    """Return the edit of a trigger."""
    sql = message.sql_pattern if message.HasField("sql_pattern") else None
    removed = tuple(message.removed_parameters)
    return TriggerEdit(message.trigger_id, sql, dict(message.parameters), removed, message.reset)


def encode_registered(each: RegisteredTrigger) -> triggers_pb2.RegisteredTrigger:
    """Return the message of a registered trigger."""
    return triggers_pb2.RegisteredTrigger(
        trigger=encode_request(each.trigger),
        client_id=each.trigger.client_id,
        alert=encode_alert(each.trigger.alert),
        registration=each.registration,
        registered_ns=each.registered_ns,
        state=each.state,  # type: ignore[arg-type]  # the same numbers
        reason=each.reason,
        firings=each.firings,
        last_fired_ns=each.last_fired_ns or None,
        revision=each.revision,
    )


def decode_registered(message: triggers_pb2.RegisteredTrigger) -> RegisteredTrigger:
    """Return a registered trigger."""
    alert = decode_alert(message.alert) if message.HasField("alert") else None
    return RegisteredTrigger(
        decode_request(message.trigger, message.client_id, alert),
        message.registration,
        message.registered_ns,
        TriggerState(message.state),
        reason=message.reason,
        firings=message.firings,
        last_fired_ns=message.last_fired_ns,
        revision=message.revision or 1,
    )


def encode_value(value: Value, of_type: str) -> bytes:
    """Return a value as a serialized FieldValue; NULL is an empty one. Times are integers, nanoseconds."""
    message = ingest_pb2.FieldValue()
    if isinstance(value, bool):
        message.bool_val = value
    elif isinstance(value, int):
        if of_type.startswith(_TIMESTAMP):
            message.timestamp_val = value
        else:
            message.int_val = value
    elif isinstance(value, float):
        message.double_val = value
    elif isinstance(value, str):
        message.string_val = value
    elif isinstance(value, bytes):
        message.bytes_val = value
    return message.SerializeToString()


def decode_value(data: bytes) -> Value:
    """Return the value of a serialized FieldValue; None for NULL. InvalidRequest if it does not parse."""
    try:
        message = ingest_pb2.FieldValue.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"a value of {len(data)} bytes is not a FieldValue: {error}") from error
    kind = message.WhichOneof("value")
    value: Value = None if kind is None else getattr(message, kind)
    return value


def encode_event(
    trigger_id: str,
    time_ns: int,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Value]],
    context: Mapping[str, str],
) -> ingest_pb2.CEPTriggerEvent:
    """Return the given message of an event."""
    names, types = [name for name, _ in columns], [of_type for _, of_type in columns]
    encoded = [
        ingest_pb2.ResultRow(values=[encode_value(value, of_type) for value, of_type in zip(row, types, strict=True)])
        for row in rows
    ]
    return ingest_pb2.CEPTriggerEvent(
        trigger_id=trigger_id,
        timestamp=time_ns,
        schema=ingest_pb2.ResultSchema(column_names=names, column_types=types),
        rows=encoded,
        context=context,
    )


def decode_event(
    message: ingest_pb2.CEPTriggerEvent,
    kind: EventKind = EventKind.FIRED,
    ticker: str = "",
    event_id: str = "",
    cursor: Cursor | None = None,
) -> TriggerEvent:
    """Return an event; InvalidRequest as ``decode_value``."""
    return TriggerEvent(
        message.trigger_id,
        event_id,
        kind,
        ticker,
        message.timestamp,
        tuple(zip(message.schema.column_names, message.schema.column_types, strict=True)),
        tuple(tuple(map(decode_value, row.values)) for row in message.rows),
        dict(message.context),
        cursor,
    )
