"""Firings as user events: each is handed to the gateway until it answers that the event is on disk, or refuses it.

The gateway knows an event by its id, so one that is sent again after a crash or a lost answer is harmless.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import structlog

from dexorder_common.model.triggers import EventKind, TriggerEvent, Value
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_retry import error_text
from dexorder_common.rpc.trigger_messages import decode_event, encode_alert
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_relay.requests.context import Context
from dexorder_relay.store import triggers as store
from dexorder_relay.triggers.triggers import RegisteredTriggers

log = structlog.get_logger(__name__)
_AT_ONCE = 50
_MILLISECOND_NS = 1_000_000
_CALL_SECONDS = 10.0
_MAX_WAIT_SECONDS = 30.0
_PRICES = ("price", "close", "triggered_price")
"""Columns of a result that can be the alert's price, by preference."""
_MAX_CONDITION = 2_000


class AlertSender:
    """Sends firings of triggers that name a user."""

    def __init__(self, context: Context, triggers: RegisteredTriggers) -> None:
        self._context = context
        self._triggers = triggers

    async def run(self) -> None:
        """Send waiting events until cancelled; after a failure again, at most 30 s later."""
        wait_seconds = 0.2
        async with open_channel(self._context.settings.gateway) as channel:
            stub: Any = rpc.EventPublisherServiceStub(channel)
            while True:
                await self._triggers.alerts_wait.wait()
                self._triggers.alerts_wait.clear()
                try:
                    while await self._send_some(stub):
                        wait_seconds = 0.2
                except grpc.aio.AioRpcError as error:
                    log.warning("the gateway does not take alerts", error=error_text(error), again_in_s=wait_seconds)
                    self._context.metrics.trigger_alerts_pending.set(1)
                    self._triggers.alerts_wait.set()
                    await asyncio.sleep(wait_seconds)
                    wait_seconds = min(2 * wait_seconds, _MAX_WAIT_SECONDS)
                else:
                    self._context.metrics.trigger_alerts_pending.set(0)

    async def _send_some(self, stub: Any) -> bool:
        """Send the oldest alerts; return whether there were any. AioRpcError if one was not answered."""
        context = self._context
        pending = await context.store.read(store.pending_alerts, _AT_ONCE)
        answers = await asyncio.gather(*(self._send(stub, each) for each in pending), return_exceptions=True)
        outcomes = [(each.sequence, answer) for each, answer in zip(pending, answers, strict=True)]
        settled = [(sequence, answer) for sequence, answer in outcomes if isinstance(answer, int)]
        await context.store.write(store.settle_alerts, settled)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return bool(pending)

    async def _send(self, stub: Any, alert: store.PendingAlert) -> int:
        answer: pb.PublishResponse = await stub.Publish(
            pb.PublishRequest(event=user_event(alert)), timeout=_CALL_SECONDS
        )
        is_refused = answer.ack.status == user_events_pb2.ACK_ERROR
        if is_refused:
            reason = answer.ack.error_message
            log.error("the gateway refuses an alert", event_id=alert.event.event_id, reason=reason)
        self._context.metrics.trigger_alerts.labels("refused" if is_refused else "sent").inc()
        return store.ALERT_REFUSED if is_refused else store.ALERT_SENT


def user_event(alert: store.PendingAlert) -> user_events_pb2.UserEvent:
    """Return the user's event. Repeated calls return the same bytes, because the gateway compares them.

    It is ALERT_TRIGGERED for a firing, and ALERT_DELETED with the reason for a suspension: the alert is gone.
    """
    trigger, event = alert.trigger, alert.event
    assert trigger.alert is not None
    fired = decode_event(ingest_pb2.CEPTriggerEvent.FromString(event.message))
    milliseconds, is_firing = event.time_ns // _MILLISECOND_NS, event.kind is EventKind.FIRED
    payload = {
        "alert_id": trigger.trigger_id,
        "symbol": event.ticker,
        "condition": trigger.sql[:_MAX_CONDITION],
        **({"message": text} if (text := fired.context.get("message")) else {}),
        **({"triggered_price": price_of(fired)} if is_firing else {"reason": fired.context.get(store.REASON, "")}),
        "timestamp": milliseconds,
    }
    delivery = encode_alert(trigger.alert)
    return user_events_pb2.UserEvent(
        user_id=trigger.alert.user_id,
        event_id=event.event_id,
        timestamp=milliseconds,
        event_type=user_events_pb2.ALERT_TRIGGERED if is_firing else user_events_pb2.ALERT_DELETED,
        payload=json.dumps(payload).encode(),
        delivery=delivery.delivery if delivery else None,
    )


def price_of(event: TriggerEvent) -> str:
    """Return the price in the last row of a result, as decimal text; empty if no column is a price."""
    if not event.rows:
        return ""
    row: dict[str, Value] = dict(zip((name for name, _ in event.columns), event.rows[-1], strict=True))
    found = next((row[name] for name in _PRICES if row.get(name) is not None), None)
    return "" if found is None or isinstance(found, bool | bytes) else str(found)
