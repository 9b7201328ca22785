"""Contacts between the protocol and our own terms: checked as they come in, their secrets hidden as they go out. Pure.

`***` in place of a secret keeps the one that is there. Of mobile tokens, as many `***` as there are tokens keep them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from zoneinfo import ZoneInfo

from services.common.model.errors import InvalidRequest
from services.common.model.user_events import Channel
from services.gateway.events.channels.hosts import Hosts
from services.gateway.events.config import EventsSettings
from services.gateway.events.model import Contacts, QuietHours, WebPushSubscription
from services.gateway.events.proto_mapping import channel_answer
from services.gen.dexorder.events.v1 import event_service_pb2 as pb

HIDDEN = "***"
MOST_DEVICES = 20
LONGEST_TOKEN = 4_096
LONGEST_URL = 2_048
HostCheck = Callable[[Channel, str], str]
"""Of PUSH, DISCORD or SLACK and a URL: why nothing may be posted there, empty if it may."""
_CHAT_ID = re.compile(r"-?[0-9]{1,20}|@[A-Za-z0-9_]{4,32}")
_EMAIL = re.compile(r"[^\s@<>\",;:\\\x00-\x1f\x7f]{1,64}@[^\s@<>\",;:\\\x00-\x1f\x7f]{1,189}")
_VISIBLE = re.compile(r"[!-~]+")
_POINT_BYTES, _AUTH_BYTES = 65, 16
_DAY_MINUTES = 24 * 60


def host_check(settings: EventsSettings) -> HostCheck:
    """By the same lists as the channels; what passes here may still be refused there, if they changed since."""
    lists = {
        Channel.PUSH: settings.push_hosts,
        Channel.DISCORD: settings.discord_hosts,
        Channel.SLACK: settings.slack_hosts,
    }
    hosts = {channel: Hosts(listed, plain_http=settings.plain_http) for channel, listed in lists.items()}
    return lambda channel, url: "" if hosts[channel].allowed(url) else "host not allowed"


def contacts_answer(contacts: Contacts) -> pb.Contacts:
    """As a user may see them, or somebody who helps them: without what would let others write to them."""
    quiet = contacts.quiet_hours
    return pb.Contacts(
        telegram_chat_id=contacts.telegram_chat_id,
        email=contacts.email,
        web_push=[pb.WebPushSubscription(endpoint=w.endpoint, p256dh=w.p256dh, auth=HIDDEN) for w in contacts.web_push],
        mobile_tokens=[HIDDEN for _ in contacts.mobile_tokens],
        discord_webhook_url=contacts.discord_webhook_url and HIDDEN,
        slack_webhook_url=contacts.slack_webhook_url and HIDDEN,
        channel_order=map(channel_answer, contacts.channel_order),
        quiet_hours=_quiet_answer(quiet) if quiet else None,
    )


def _quiet_answer(quiet: QuietHours) -> pb.QuietHours:
    return pb.QuietHours(start_minute=quiet.start_minute, end_minute=quiet.end_minute, time_zone=quiet.time_zone)


def contacts_of(given: pb.Contacts, before: Contacts, host_problem: HostCheck) -> Contacts:
    """What a user wants from now on.

    Args:
        before: What is known so far; it has the hidden secrets.

    Raises:
        InvalidRequest: A field can't be used; never shows a secret.
    """
    if given.telegram_chat_id and not _CHAT_ID.fullmatch(given.telegram_chat_id):
        raise InvalidRequest("telegram_chat_id is neither a number nor an @name")
    if given.email and not _EMAIL.fullmatch(given.email):
        raise InvalidRequest("email is no address of the form name@host")
    return Contacts(
        telegram_chat_id=given.telegram_chat_id,
        email=given.email,
        web_push=_subscriptions(given.web_push, before, host_problem),
        mobile_tokens=_mobile_tokens(given.mobile_tokens, before.mobile_tokens),
        discord_webhook_url=_webhook(
            "discord_webhook_url", Channel.DISCORD, given.discord_webhook_url, before.discord_webhook_url, host_problem
        ),
        slack_webhook_url=_webhook(
            "slack_webhook_url", Channel.SLACK, given.slack_webhook_url, before.slack_webhook_url, host_problem
        ),
        channel_order=_channel_order(given.channel_order),
        quiet_hours=_quiet_hours(given.quiet_hours) if given.HasField("quiet_hours") else None,
    )


def _subscriptions(
    given: Sequence[pb.WebPushSubscription], before: Contacts, host_problem: HostCheck
) -> tuple[WebPushSubscription, ...]:
    _refuse_many("web_push", len(given))
    known = {each.endpoint: each.auth for each in before.web_push}
    found: dict[str, WebPushSubscription] = {}
    for index, each in enumerate(given):
        name = f"web_push[{index}]"
        auth = known.get(each.endpoint, "") if each.auth == HIDDEN else each.auth
        _check_url(f"{name}.endpoint", Channel.PUSH, each.endpoint, host_problem)
        if _size(each.p256dh) != _POINT_BYTES:
            raise InvalidRequest(f"{name}.p256dh is not base64url of {_POINT_BYTES} bytes")
        if _size(auth) != _AUTH_BYTES:
            raise InvalidRequest(f"{name}.auth is not base64url of {_AUTH_BYTES} bytes")
        found[each.endpoint] = WebPushSubscription(each.endpoint, each.p256dh, auth)
    return tuple(found.values())


def _mobile_tokens(given: Sequence[str], before: Sequence[str]) -> tuple[str, ...]:
    hidden = sum(token == HIDDEN for token in given)
    if hidden not in (0, len(before)):
        raise InvalidRequest(f"mobile_tokens has {hidden} times {HIDDEN} for {len(before)} tokens; name all or none")
    kept = iter(before)
    tokens = tuple(dict.fromkeys(next(kept) if token == HIDDEN else token for token in given))
    _refuse_many("mobile_tokens", len(tokens))
    for index, token in enumerate(tokens):
        if len(token) > LONGEST_TOKEN or not _VISIBLE.fullmatch(token):
            raise InvalidRequest(f"mobile_tokens[{index}] is not of 1 to {LONGEST_TOKEN} visible characters")
    return tokens


def _webhook(name: str, channel: Channel, given: str, before: str, host_problem: HostCheck) -> str:
    url = before if given == HIDDEN else given
    if url:
        _check_url(name, channel, url, host_problem)
    return url


def _check_url(name: str, channel: Channel, url: str, host_problem: HostCheck) -> None:
    if len(url) > LONGEST_URL or not _VISIBLE.fullmatch(url):
        raise InvalidRequest(f"{name} is no URL of up to {LONGEST_URL} visible characters")
    if problem := host_problem(channel, url):
        raise InvalidRequest(f"{name}: {problem}")


def _channel_order(given: Sequence[int]) -> tuple[Channel, ...]:
    try:
        order = tuple(map(Channel, given))
    except ValueError as error:
        raise InvalidRequest(f"channel_order: {error}") from None
    if len(set(order)) != len(order):
        raise InvalidRequest("channel_order names a channel twice")
    return order


def _quiet_hours(given: pb.QuietHours) -> QuietHours:
    for name in ("start_minute", "end_minute"):
        if (minute := getattr(given, name)) >= _DAY_MINUTES:
            raise InvalidRequest(f"quiet_hours.{name} {minute} is not below {_DAY_MINUTES}")
    if given.start_minute == given.end_minute:
        raise InvalidRequest(f"quiet_hours begin and end at minute {given.start_minute}")
    try:
        ZoneInfo(given.time_zone)
    except (OSError, ValueError, KeyError):  # whatever a name may lead to that is no zone
        raise InvalidRequest(f"quiet_hours.time_zone {given.time_zone[:64]!r} is not known") from None
    return QuietHours(given.start_minute, given.end_minute, given.time_zone)


def _refuse_many(name: str, count: int) -> None:
    if count > MOST_DEVICES:
        raise InvalidRequest(f"{name} has {count} entries; {MOST_DEVICES} are the most")


def _size(text: str) -> int | None:
    """Bytes that base64url stands for, with or without padding; None if it is none."""
    try:
        return len(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None
