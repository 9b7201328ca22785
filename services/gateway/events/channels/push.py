"""PUSH: all of a user's browsers and phones at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from services.common.model.user_events import Channel
from services.gateway.events.channels.adapter import NO_CONTACT, NOT_CONFIGURED
from services.gateway.events.model import Contacts, Later, Message, Refused, Result, Sent

if TYPE_CHECKING:  # each brings a library that is loaded only where it is turned on
    from services.gateway.events.channels.mobile_push import MobilePush
    from services.gateway.events.channels.web_push import WebPush


class Push:
    """It is sent if one device's service took it; what is not turned on is left out."""

    channel = Channel.PUSH

    def __init__(self, web: WebPush | None, mobile: MobilePush | None) -> None:
        self._web = web
        self._mobile = mobile

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        if not contacts.web_push and not contacts.mobile_tokens:
            return NO_CONTACT
        if self._mobile and contacts.mobile_tokens:
            return ""
        if not self._web or not contacts.web_push:
            return NOT_CONFIGURED
        reasons = [self._web.reachable(subscription) for subscription in contacts.web_push]
        return "" if "" in reasons else reasons[0]

    async def send(self, message: Message, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        if why := self.reachable(contacts):
            return Refused(why)
        sends: list[Awaitable[Result]] = []
        if self._web:
            sends += [self._web.send(message, subscription) for subscription in contacts.web_push]
        if self._mobile:
            sends += [self._mobile.send(message, token) for token in contacts.mobile_tokens]
        return combine_results(await asyncio.gather(*sends))


def combine_results(results: Sequence[Result]) -> Result:
    """One result of several devices' (at least one): the best, and all that are gone.

    Where some are to be tried later, the soonest says when.
    """
    gone = tuple(place for result in results if not isinstance(result, Later) for place in result.gone)
    if any(isinstance(result, Sent) for result in results):
        return Sent(gone)
    if later := [result for result in results if isinstance(result, Later)]:
        return min(later, key=lambda result: result.retry_after_ms or 0)
    reasons = dict.fromkeys(result.reason for result in results if isinstance(result, Refused))
    return Refused(", ".join(reasons), gone)
