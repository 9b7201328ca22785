"""Values whose repr shows no contact of a user."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.delivery.changes import DeliveryChanges, SendRequest
from dexorder_gateway.events.model import Contacts, EventKey, EventMessage, SendRefused, Sent, WebPushSubscription

HIDDEN = "4711-alice"
PREFERENCES = {"channel_order", "quiet_hours"}
"""Fields of `Contacts` that are preferences."""


def all_contacts() -> dict[str, Any]:
    """Return a value for each field with a contact; a field of a new type must be added here."""
    browser = WebPushSubscription(**{each.name: HIDDEN for each in fields(WebPushSubscription)})
    filled: dict[Any, Any] = {str: HIDDEN, tuple[str, ...]: (HIDDEN,), tuple[WebPushSubscription, ...]: (browser,)}
    return {name: filled[kind] for name, kind in get_type_hints(Contacts).items() if name not in PREFERENCES}


@pytest.mark.parametrize("name", all_contacts())
def test_repr_hides_contacts(name: str) -> None:
    contacts = Contacts(**{name: all_contacts()[name]})
    message = EventMessage("aa", "t", "b", Priority.NORMAL, 1)
    assert HIDDEN not in repr(contacts)
    assert HIDDEN not in repr(SendRequest(EventKey("c", "e"), 1, Channel.EMAIL, "alice", message, contacts))


def test_repr_hides_missing_destinations() -> None:
    changes = DeliveryChanges()
    changes.gone.append(("alice", Channel.PUSH, HIDDEN))
    assert HIDDEN not in f"{Sent((HIDDEN,))} {SendRefused('no such address', (HIDDEN,))} {changes}"
