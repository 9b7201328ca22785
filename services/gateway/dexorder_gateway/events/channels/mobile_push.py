"""Push messages to phones through Firebase Cloud Messaging (HTTP v1)."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Final

from firebase_admin import credentials, messaging
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from dexorder_common.config import BadSettings
from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.channels.http import Http, ProviderAnswer
from dexorder_gateway.events.channels.spec import PUSH_TTL_SECONDS, truncate, utf8_bytes
from dexorder_gateway.events.model import NO_CONNECTION, NOT_ACCEPTED, TIMEOUT, EventMessage, Later, Result, SendRefused

_MAX_TITLE_BYTES = 200
_MAX_BODY_BYTES = 1000  # the limit of a whole message is 4096
_UNREGISTERED = "UNREGISTERED"
_REASONS: Final = {
    _UNREGISTERED: "the phone's registration is gone",
    "SENDER_ID_MISMATCH": "the phone is registered elsewhere",
    "THIRD_PARTY_AUTH_ERROR": "our key for the phone's push service is refused",
    "UNAUTHENTICATED": "our FCM account is refused",
    "PERMISSION_DENIED": "our FCM account is refused",
    "NOT_FOUND": "our FCM project is refused",
}
"""Reasons by FCM's error codes."""


class MobilePush:
    """Client of FCM that sends to one phone at a time.

    firebase-admin reads the account, obtains tokens and builds the messages. They are not sent by its own client, which
    sleeps and retries by itself on 429, 500 and 503 and hides Retry-After.

    Raises:
        BadSettings: ``credentials_file`` is not Google's service account file.
    """

    def __init__(self, http: Http, credentials_file: Path, base_url: str, timeout_seconds: float) -> None:
        try:
            certificate = credentials.Certificate(str(credentials_file))
        except (OSError, ValueError):
            certificate = None
        if certificate is None or not certificate.project_id:
            raise BadSettings(
                f"DEXORDER_EVENTS_FCM_CREDENTIALS: {str(credentials_file)!r} is not a service account file"
            )
        self._http = http
        self._credential = certificate.get_credential()
        self._url = f"{base_url.rstrip('/')}/v1/projects/{certificate.project_id}/messages:send"
        self._request = partial(Request(), timeout=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._refresh: asyncio.Future[None] | None = None

    async def send(self, message: EventMessage, token: str) -> Result:
        """Call FCM once; about once an hour obtain an access token before."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._ensure_access()
                headers = {"Authorization": f"Bearer {self._credential.token}", "Content-Type": "application/json"}
                answer = await self._http.post(self._url, data=_data(message, token), headers=headers)
        except TimeoutError:
            return Later(TIMEOUT)
        except TransportError:
            return Later(NO_CONNECTION)
        except GoogleAuthError as error:
            return Later(NO_CONNECTION) if error.retryable else SendRefused("our FCM account is refused")
        if not isinstance(answer, ProviderAnswer):
            return answer
        code = _error_code(answer)
        gone = (token,) if code == _UNREGISTERED else ()
        return answer.later() or SendRefused(_REASONS.get(code, NOT_ACCEPTED), gone)

    async def _ensure_access(self) -> None:
        """Wait for an access token. One thread obtains it for all waiting sends."""
        if self._credential.valid:
            return
        if self._refresh is None or self._refresh.done():
            loop = asyncio.get_running_loop()
            self._refresh = loop.run_in_executor(None, self._credential.refresh, self._request)
            # retrieved even if no send waits any more
            self._refresh.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._refresh)


def _data(message: EventMessage, token: str) -> bytes:
    """Return the request's body; on the phone a copy with the same reference replaces the earlier one."""
    critical = message.priority is Priority.CRITICAL
    written = messaging.Message(
        notification=messaging.Notification(
            truncate(message.title, _MAX_TITLE_BYTES, utf8_bytes), truncate(message.body, _MAX_BODY_BYTES, utf8_bytes)
        ),
        data={"reference": message.reference},
        android=messaging.AndroidConfig(
            collapse_key=message.reference,
            priority="high" if critical else "normal",
            ttl=PUSH_TTL_SECONDS[message.priority],
            notification=messaging.AndroidNotification(tag=message.reference),
        ),
        apns=messaging.APNSConfig(
            headers={"apns-collapse-id": message.reference, "apns-priority": "10" if critical else "5"}
        ),
    )
    written.token = token  # the constructor would warn: FCM prefers installation ids to tokens
    return json.dumps({"message": json.loads(str(written))}, ensure_ascii=False).encode()


def _error_code(answer: ProviderAnswer) -> str:
    """Return FCM's own code if there is one, else Google's."""
    error = answer.json().get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    found = [part.get("errorCode") for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    return str(next((code for code in found if code), error.get("status", "")))
