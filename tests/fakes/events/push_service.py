"""Push service of a browser vendor, with browsers that decrypt the messages."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import http_ece
import jwt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dexorder_gateway.events.model import WebPushSubscription
from tests.fakes.events.scripted import Call, Reply, ScriptedServer

_MAX_BODY = 4096
_MAX_TOPIC = 32
_MAX_SECONDS_TO_EXPIRY = 24 * 3600


@dataclass(frozen=True)
class Notification:
    """A decrypted message with its headers."""

    at: float
    endpoint: str
    data: Any
    ttl: int
    urgency: str
    topic: str


class PushService(ScriptedServer):
    """Server of one vendor; ``shown`` are the accepted and decrypted notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Notification] = []
        self._vapid = ec.generate_private_key(ec.SECP256R1())
        self._browsers: dict[str, tuple[ec.EllipticCurvePrivateKey, bytes]] = {}

    def vapid_key(self, path: Path) -> Path:
        """Write the application server's private key, for ``DEXORDER_EVENTS_VAPID_KEY``."""
        path.write_bytes(
            self._vapid.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return path

    def subscribe(self) -> WebPushSubscription:
        """Add a browser and return its subscription."""
        key, auth = ec.generate_private_key(ec.SECP256R1()), os.urandom(16)
        path = f"/push/{_b64(os.urandom(12))}"
        self._browsers[path] = key, auth
        return WebPushSubscription(f"{self.url}{path}", _b64(_point(key)), _b64(auth))

    def unsubscribe(self, subscription: WebPushSubscription) -> None:
        """Remove a browser; its endpoint answers 410 Gone."""
        del self._browsers[subscription.endpoint.removeprefix(self.url)]

    def answer(self, call: Call) -> Reply:
        if call.path not in self._browsers:
            return Reply(410, {"code": 410, "errno": 106, "error": "Gone"})
        if problem := self._problem(call):
            return problem
        key, auth = self._browsers[call.path]
        try:
            plain = http_ece.decrypt(call.body, private_key=key, auth_secret=auth, version="aes128gcm")
        except (http_ece.ECEException, InvalidTag, ValueError):
            return Reply(400, "can't be decrypted")
        headers = call.headers
        urgency, topic = headers.get("Urgency", "normal"), headers.get("Topic", "")
        shown = Notification(call.at, f"{self.url}{call.path}", json.loads(plain), int(headers["TTL"]), urgency, topic)
        self.shown.append(shown)
        return Reply(201, "", {"Location": f"{self.url}/m/{len(self.shown)}"})

    def _problem(self, call: Call) -> Reply | None:
        headers = call.headers
        if not headers.get("TTL", "").isdigit() or headers.get("Content-Encoding") != "aes128gcm":
            return Reply(400, "TTL and Content-Encoding: aes128gcm are needed")
        if len(headers.get("Topic", "")) > _MAX_TOPIC:
            return Reply(400, "Topic is too long")
        if len(call.body) > _MAX_BODY:
            return Reply(413, "too large")
        scheme, _, rest = headers.get("Authorization", "").partition(" ")
        parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        if scheme.lower() != "vapid" or parts.get("k") != _b64(_point(self._vapid)):
            return Reply(401, "VAPID credentials are needed")
        try:
            claims = jwt.decode(parts.get("t", ""), self._vapid.public_key(), ["ES256"], audience=self.url)
        except jwt.InvalidTokenError:
            return Reply(403, "VAPID's token is wrong")
        if claims["exp"] > time.time() + _MAX_SECONDS_TO_EXPIRY or "sub" not in claims:
            return Reply(403, "VAPID's token is valid for too long or has no sub")
        return None


def _point(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
