"""Contacts between the protocol and the gateway's model: validated on the way in, secrets hidden on the way out.

`***` in place of a secret keeps the present one. For mobile tokens, as many `***` as there are tokens keep them all.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from zoneinfo import ZoneInfo

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.http import AllowedHosts
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.model import Contacts, QuietHours, WebPushSubscription
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb

HIDDEN = "***"
MAX_DEVICES = 20
MAX_TOKEN_CHARACTERS = 4_096
MAX_URL_CHARACTERS = 2_048
HostCheck = Callable[[Channel, str], str]
"""Given PUSH, DISCORD or SLACK and a URL, returns why the gateway may not post there; empty if it may."""
_CHAT_ID = re.compile(r"-?[0-9]{1,20}|@[A-Za-z0-9_]{4,32}")
_EMAIL = re.compile(r"[^\s@<>\",;:\\\x00-\x1f\x7f]{1,64}@[^\s@<>\",;:\\\x00-\x1f\x7f]{1,189}")
_VISIBLE = re.compile(r"[!-~]+")
_POINT_BYTES = 65
_AUTH_BYTES = 16
_DAY_MINUTES = 24 * 60


def host_check(settings: EventsSettings) -> HostCheck:
    """Return a check by the channels' own lists of hosts; the channels check again when they send."""
    lists = {
        Channel.PUSH: settings.push_hosts,
        Channel.DISCORD: settings.discord_hosts,
        Channel.SLACK: settings.slack_hosts,
    }
    hosts = {channel: AllowedHosts(listed, plain_http=settings.plain_http) for channel, listed in lists.items()}
    return lambda channel, url: "" if hosts[channel].parse(url) else "host not allowed"


def contacts_answer(contacts: Contacts) -> pb.Contacts:
    """Return contacts as users and staff may see them, without secrets that would let others write to the user."""
    quiet = contacts.quiet_hours
    return pb.Contacts(
        telegram_chat_id=contacts.telegram_chat_id,
        email=contacts.email,
        web_push=[pb.WebPushSubscription(endpoint=w.endpoint, p256dh=w.p256dh, auth=HIDDEN) for w in contacts.web_push],
        mobile_tokens=[HIDDEN for _ in contacts.mobile_tokens],
        discord_webhook_url=contacts.discord_webhook_url and HIDDEN,
        slack_webhook_url=contacts.slack_webhook_url and HIDDEN,
        channel_order=contacts.channel_order,  # type: ignore[arg-type]  # the same numbers
        quiet_hours=pb.QuietHours(**asdict(quiet)) if quiet else None,
    )


def contacts_of(given: pb.Contacts, before: Contacts, host_problem: HostCheck) -> Contacts:
    """Return a user's new contacts; ``before`` has the secrets that `***` stands for. No error text shows a secret."""
    if given.telegram_chat_id and not _CHAT_ID.fullmatch(given.telegram_chat_id):
        raise InvalidRequest("telegram_chat_id is neither a number nor an @name")
    if given.email and not _EMAIL.fullmatch(given.email):
        raise InvalidRequest("email is not an address of the form name@host")
    return Contacts(
        telegram_chat_id=given.telegram_chat_id,
        email=given.email,
        web_push=_subscriptions(given.web_push, before, host_problem),
        mobile_tokens=_mobile_tokens(given.mobile_tokens, before.mobile_tokens),
        discord_webhook_url=_webhook(
            Channel.DISCORD, given.discord_webhook_url, before.discord_webhook_url, host_problem
        ),
        slack_webhook_url=_webhook(Channel.SLACK, given.slack_webhook_url, before.slack_webhook_url, host_problem),
        channel_order=_channel_order(given.channel_order),
        quiet_hours=_quiet_hours(given.quiet_hours) if given.HasField("quiet_hours") else None,
    )


def _subscriptions(
    given: Sequence[pb.WebPushSubscription], before: Contacts, host_problem: HostCheck
) -> tuple[WebPushSubscription, ...]:
    _check_count("web_push", len(given))
    known = {each.endpoint: each.auth for each in before.web_push}
    found: dict[str, WebPushSubscription] = {}
    for index, each in enumerate(given):
        name = f"web_push[{index}]"
        auth = known.get(each.endpoint, "") if each.auth == HIDDEN else each.auth
        _check_url(f"{name}.endpoint", Channel.PUSH, each.endpoint, host_problem)
        if _decoded_size(each.p256dh) != _POINT_BYTES:
            raise InvalidRequest(f"{name}.p256dh is not base64url of {_POINT_BYTES} bytes")
        if _decoded_size(auth) != _AUTH_BYTES:
            raise InvalidRequest(f"{name}.auth is not base64url of {_AUTH_BYTES} bytes")
        found[each.endpoint] = WebPushSubscription(each.endpoint, each.p256dh, auth)
    return tuple(found.values())


def _mobile_tokens(given: Sequence[str], before: Sequence[str]) -> tuple[str, ...]:
    hidden = sum(token == HIDDEN for token in given)
    if hidden not in (0, len(before)):
        raise InvalidRequest(f"mobile_tokens has {hidden} times {HIDDEN} for {len(before)} tokens; keep all or none")
    kept = iter(before)
    tokens = tuple(dict.fromkeys(next(kept) if token == HIDDEN else token for token in given))
    _check_count("mobile_tokens", len(tokens))
    for index, token in enumerate(tokens):
        if len(token) > MAX_TOKEN_CHARACTERS or not _VISIBLE.fullmatch(token):
            raise InvalidRequest(f"mobile_tokens[{index}] does not have 1 to {MAX_TOKEN_CHARACTERS} visible characters")
    return tokens


def _webhook(channel: Channel, given: str, before: str, host_problem: HostCheck) -> str:
    url = before if given == HIDDEN else given
    if url:
        _check_url(f"{channel.name.lower()}_webhook_url", channel, url, host_problem)
    return url


def _check_url(name: str, channel: Channel, url: str, host_problem: HostCheck) -> None:
    if len(url) > MAX_URL_CHARACTERS or not _VISIBLE.fullmatch(url):
        raise InvalidRequest(f"{name} is not a URL of at most {MAX_URL_CHARACTERS} visible characters")
    if problem := host_problem(channel, url):
        raise InvalidRequest(f"{name}: {problem}")


def _channel_order(given: Sequence[int]) -> tuple[Channel, ...]:
    try:
        order = tuple(map(Channel, given))
    except ValueError as error:
        raise InvalidRequest(f"channel_order: {error}") from None
    if len(set(order)) != len(order):
        raise InvalidRequest("channel_order has a duplicate channel")
    return order


def _quiet_hours(given: pb.QuietHours) -> QuietHours:
    for name in ("start_minute", "end_minute"):
        if (minute := getattr(given, name)) >= _DAY_MINUTES:
            raise InvalidRequest(f"quiet_hours.{name} {minute} is not below {_DAY_MINUTES}")
    if given.start_minute == given.end_minute:
        raise InvalidRequest(f"quiet_hours begin and end at minute {given.start_minute}")
    try:
        ZoneInfo(given.time_zone)
    except (OSError, ValueError, KeyError):  # ZoneInfo opens a file of that name
        raise InvalidRequest(
            f"quiet_hours.time_zone {given.time_zone[:64]!r} is unknown; use an IANA name like Europe/Berlin"
        ) from None
    return QuietHours(given.start_minute, given.end_minute, given.time_zone)


def _check_count(name: str, count: int) -> None:
    if count > MAX_DEVICES:
        raise InvalidRequest(f"{name} has {count} entries; at most {MAX_DEVICES} are allowed")


def _decoded_size(text: str) -> int | None:
    """Return the number of bytes that base64url stands for, with or without padding; None if it is invalid."""
    try:
        return len(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None
