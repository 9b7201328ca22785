"""Push messages to browsers (RFC 8030), encrypted for each (RFC 8291), signed with our key (VAPID, RFC 8292)."""

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

from services.common.config import BadSettings
from services.common.model.user_events import Priority
from services.gateway.events.channels.adapter import HOST_NOT_ALLOWED
from services.gateway.events.channels.hosts import Hosts
from services.gateway.events.channels.http import Answer, Http
from services.gateway.events.channels.text import cut, utf8_bytes
from services.gateway.events.model import Later, Message, Refused, Result, Sent, WebPushSubscription

_MOST_TITLE_BYTES, _MOST_BODY_BYTES = 200, 1500  # quoted and encrypted they stay below the 4096 that services take
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
_KEPT_SECONDS: Final = {Priority.INFORMATIONAL: 0, Priority.NORMAL: 3600, Priority.CRITICAL: 24 * 3600}
"""How long a push service keeps a message for a browser that is away."""


class WebPush:
    """Sends to one browser at a time; redirects are not followed, so pywebpush encrypts and `Http` posts.

    Args:
        key_file: PEM of the private key, P-256.
        contact: ``mailto:`` or ``https:``; whom a push service may write to.

    Raises:
        BadSettings: The key can't be used.
    """

    def __init__(self, http: Http, hosts: Hosts, key_file: Path, contact: str) -> None:
        self._http = http
        self._hosts = hosts
        self._vapid = Vapid02(_read_key(key_file))
        self._contact = contact

    def reachable(self, subscription: WebPushSubscription) -> str:
        """Empty, or why not."""
        return "" if self._hosts.allowed(subscription.endpoint) else HOST_NOT_ALLOWED

    async def send(self, message: Message, subscription: WebPushSubscription) -> Result:
        """One call of one push service."""
        url = self._hosts.allowed(subscription.endpoint)
        if url is None:
            return Refused(HOST_NOT_ALLOWED)
        try:
            # elliptic curves take their time, and sessions wait for the loop
            data, headers = await asyncio.to_thread(self._sealed, message, subscription, url)
        except (WebPushException, ValueError, IndexError):
            return Refused("no valid subscription")
        answer = await self._http.post(url, data=data, headers=headers)
        return answer if isinstance(answer, Later) else _result(answer, subscription)

    def _sealed(self, message: Message, to: WebPushSubscription, url: URL) -> tuple[bytes, dict[str, str]]:
        """The encrypted message and its headers."""
        keys = {"p256dh": to.p256dh, "auth": to.auth}
        data = WebPusher({"endpoint": to.endpoint, "keys": keys}).encode(_data(message))["body"]
        expires = int(time.time()) + _SIGNED_SECONDS
        headers = self._vapid.sign({"sub": self._contact, "aud": str(url.origin()), "exp": expires}) | {
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(_KEPT_SECONDS[message.priority]),
            "Urgency": _URGENCY[message.priority],
            "Topic": message.reference,
        }
        return data, headers


def _data(message: Message) -> bytes:
    """What a browser's service worker gets: title and body to show; ``tag`` replaces an earlier copy."""
    shown = {
        "title": cut(message.title, _MOST_TITLE_BYTES, utf8_bytes),
        "body": cut(message.body, _MOST_BODY_BYTES, utf8_bytes),
        "tag": message.reference,
        "timestamp": message.timestamp_ms,
    }
    return json.dumps(shown, ensure_ascii=False).encode()


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise BadSettings(f"DEXORDER_EVENTS_VAPID_KEY: no PEM file of a P-256 private key (got {str(path)!r})")
    return key


def _result(answer: Answer, subscription: WebPushSubscription) -> Result:
    if answer.ok:
        return Sent()
    gone = (subscription.endpoint,) if answer.status in _GONE else ()
    return answer.later() or Refused(_REASONS.get(answer.status, "not accepted"), gone)
