"""Push messages to browsers (RFC 8030), encrypted for each (RFC 8291) and signed (VAPID, RFC 8292)."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from py_vapid import Vapid02
from pywebpush import WebPusher, WebPushException
from yarl import URL

from dexorder_common.config import BadSettings
from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.channels.http import AllowedHosts, Http, ProviderAnswer
from dexorder_gateway.events.channels.spec import PUSH_TTL_SECONDS, truncate, utf8_bytes
from dexorder_gateway.events.model import (
    HOST_NOT_ALLOWED,
    NOT_ACCEPTED,
    EventMessage,
    Result,
    SendRefused,
    WebPushSubscription,
)

_MAX_TITLE_BYTES = 200
_MAX_BODY_BYTES = 1500  # quoted and encrypted, title and body stay below the 4096 that services accept
_SIGNED_SECONDS = 3600
_GONE = frozenset({404, 410})
_REASONS: Final = {
    400: "our VAPID key is refused",
    401: "our VAPID key is refused",
    403: "our VAPID key is refused",
    404: "the subscription is gone",
    410: "the subscription is gone",
    413: "too large",
}
_URGENCY: Final = {Priority.INFORMATIONAL: "low", Priority.NORMAL: "normal", Priority.CRITICAL: "high"}


class WebPush:
    """Client of push services that sends to one browser at a time.

    pywebpush encrypts and `Http` posts, as pywebpush itself would follow redirects.

    Args:
        key_file: PEM of the private key, P-256.
        contact: ``mailto:`` or ``https:`` address that a push service may contact.

    Raises:
        BadSettings: The key can't be used.
    """

    def __init__(self, http: Http, hosts: AllowedHosts, key_file: Path, contact: str) -> None:
        self._http = http
        self._hosts = hosts
        self._vapid = Vapid02(_read_key(key_file))
        self._contact = contact

    def reachable(self, subscription: WebPushSubscription) -> str:
        """Return why a subscription can't be reached; empty if it can."""
        return "" if self._hosts.parse(subscription.endpoint) else HOST_NOT_ALLOWED

    async def send(self, message: EventMessage, subscription: WebPushSubscription) -> Result:
        """Call the subscription's push service once."""
        url = self._hosts.parse(subscription.endpoint)
        if url is None:
            return SendRefused(HOST_NOT_ALLOWED)
        try:
            # in a thread: cryptography would block the sessions on the loop
            data, headers = await asyncio.to_thread(self._encrypt, message, subscription, url)
        except (WebPushException, ValueError, IndexError):
            return SendRefused("no valid subscription")
        answer = await self._http.post(url, data=data, headers=headers)
        if not isinstance(answer, ProviderAnswer):
            return answer
        gone = (subscription.endpoint,) if answer.status in _GONE else ()
        return answer.later() or SendRefused(_REASONS.get(answer.status, NOT_ACCEPTED), gone)

    def _encrypt(self, message: EventMessage, to: WebPushSubscription, url: URL) -> tuple[bytes, dict[str, str]]:
        """Return the encrypted message and its headers."""
        keys = {"p256dh": to.p256dh, "auth": to.auth}
        data = WebPusher({"endpoint": to.endpoint, "keys": keys}).encode(_data(message))["body"]
        expires = int(time.time()) + _SIGNED_SECONDS
        headers = self._vapid.sign({"sub": self._contact, "aud": str(url.origin()), "exp": expires}) | {
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(PUSH_TTL_SECONDS[message.priority]),
            "Urgency": _URGENCY[message.priority],
            "Topic": message.reference,
        }
        return data, headers


def _data(message: EventMessage) -> bytes:
    """Return the data for the browser's service worker; a notification replaces an earlier one of the same ``tag``."""
    notification = {
        "title": truncate(message.title, _MAX_TITLE_BYTES, utf8_bytes),
        "body": truncate(message.body, _MAX_BODY_BYTES, utf8_bytes),
        "tag": message.reference,
        "timestamp": message.timestamp_ms,
    }
    return json.dumps(notification, ensure_ascii=False).encode()


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise BadSettings(f"DEXORDER_EVENTS_VAPID_KEY: {str(path)!r} is not a PEM file of a P-256 private key")
    return key
