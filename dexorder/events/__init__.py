"""Library with which containers publish user events. `Publisher` keeps an event until the gateway has settled it."""

from dexorder.errors import EventRefused, EventUnknown, OutboxFailed, OutboxFull, PublisherClosed
from dexorder.events.config import PublisherSettings
from dexorder.events.outcomes import FinalStatus, Outcome
from dexorder.events.publisher import AsyncPublisher, Publisher
from dexorder_common.model.user_events import Channel, Preference, Priority
from dexorder_protos.dexorder.events.v1.user_events_pb2 import EventType

__all__ = [
    "AsyncPublisher",
    "Channel",
    "EventRefused",
    "EventType",
    "EventUnknown",
    "FinalStatus",
    "OutboxFailed",
    "OutboxFull",
    "Outcome",
    "Preference",
    "Priority",
    "Publisher",
    "PublisherClosed",
    "PublisherSettings",
]
