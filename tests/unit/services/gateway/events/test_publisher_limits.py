"""Limits of events at both calls that publish them, over a real gateway; tests/integration/events has 5570 and 5571."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, NORMAL, event
from tests.unit.services.gateway.events.test_full_disk import SETTINGS, events_settings
from write_limits import limits

QUEUED, REFUSED = given.QUEUED, given.ACK_ERROR
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
PAYLOAD = b'{"message":"%s"}' % (b"x" * 986)
CASES: dict[str, tuple[dict[str, Any], list[given.UserEvent], given.UserEvent, Any]] = {
    "bytes of an event's payload": (
        {"max_payload_bytes": 999},
        [event("ann", "fits", payload=PAYLOAD.replace(b"xx", b"x", 1))],
        event("ann", "more", payload=PAYLOAD),
        "payload too large",
    ),
    "NORMAL events, hard": (
        {"hard_events_per_second": 1e-4, "soft_events_per_second": 1e-5},
        [event("ann", "n-0", NORMAL)],
        event("ann", "more", NORMAL),
        "quota exceeded",
    ),
    "queued events": (
        {"hard_queued_events": 2},
        [event("ann", "n-0", NORMAL), event("ann", "n-1", NORMAL)],
        event("ann", "more", NORMAL),
        "quota exceeded",
    ),
    "queued CRITICAL events": (
        {"hard_critical_events": 2},
        [event("ann", "c-0"), event("ann", "c-1")],
        event("ann", "more", CRITICAL),
        EXHAUSTED,
    ),
    "bytes of queued CRITICAL events": (
        {"hard_critical_bytes": 2_500},
        [event("ann", "c-0", payload=PAYLOAD), event("ann", "c-1", payload=PAYLOAD)],
        event("ann", "more", CRITICAL, payload=PAYLOAD),
        EXHAUSTED,
    ),
}
"""By row of docs/limits.toml: settings, events that are taken, one that is not, and words of its ack or a status."""
CALLS = {
    row.resource: [door.partition(".")[2] for door in row.doors if door.startswith("EventPublisherService.")]
    for row in limits()
    if row.resource in CASES
}


async def published(stub: Any, call: str, sent: Sequence[given.UserEvent]) -> list[Any]:
    """Return the first ack of each event, or the status of the call that ended instead."""
    found: list[Any] = []
    try:
        if call == "Publish":
            for each in sent:
                found.append((await stub.Publish(pb.PublishRequest(event=each), timeout=30)).ack)
            return found
        stream = stub.PublishMany(timeout=30)
        for each in sent:
            await stream.write(pb.PublishManyRequest(event=each))
            answer = await stream.read()
            if answer is grpc.aio.EOF:
                found.append(await stream.code())
                return found
            found.append(answer.ack)
        stream.cancel()
    except grpc.aio.AioRpcError as error:
        found.append(error.code())
    return found


@pytest.mark.parametrize("call", ["Publish", "PublishMany"])
@pytest.mark.parametrize("resource", CASES)
async def test_an_event_beyond_a_limit_is_refused_by_each_call(resource: str, call: str, tmp_path: Path) -> None:
    assert call in CALLS[resource]
    values, taken, refused, how = CASES[resource]
    settings = events_settings(tmp_path).model_copy(update=values)
    async with gateway(SETTINGS, settings) as running, open_channel(running.address, ChannelSettings()) as channel:
        stub: Any = rpc.EventPublisherServiceStub(channel)
        acks = await published(stub, call, taken)
        assert [(each.event_id, each.status) for each in acks] == [(each.event_id, QUEUED) for each in taken]
        (found,) = await published(stub, call, [refused])
        if isinstance(how, str):
            assert (found.status, found.error_message) == (REFUSED, how)
        else:
            assert found is how
        (again,) = await published(stub, call, taken[:1])
        assert (again.event_id, again.status) == (taken[0].event_id, QUEUED), "what was taken is still there"
