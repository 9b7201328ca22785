"""Push messages to phones by Firebase Cloud Messaging (HTTP v1)."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Final

from firebase_admin import credentials, messaging
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from services.common.config import BadSettings
from services.common.model.user_events import Priority
from services.gateway.events.channels.adapter import NO_CONNECTION, TIMEOUT
from services.gateway.events.channels.http import Answer, Http
from services.gateway.events.channels.text import cut, utf8_bytes
from services.gateway.events.model import Later, Message, Refused, Result, Sent

_MOST_TITLE_BYTES, _MOST_BODY_BYTES = 200, 1000  # a message may have 4096 bytes in all
_KEPT_SECONDS: Final = {Priority.INFORMATIONAL: 0, Priority.NORMAL: 3600, Priority.CRITICAL: 24 * 3600}
_UNREGISTERED = "UNREGISTERED"
_REASONS: Final = {
    _UNREGISTERED: "the phone's registration is gone",
    "SENDER_ID_MISMATCH": "the phone is registered elsewhere",
    "THIRD_PARTY_AUTH_ERROR": "our key for the phone's push service is refused",
    "UNAUTHENTICATED": "our FCM account is refused",
    "PERMISSION_DENIED": "our FCM account is refused",
    "NOT_FOUND": "our FCM project is refused",
}
"""FCM's words and ours."""


class MobilePush:
    """Sends to one phone at a time.

    firebase-admin reads the account, gets its tokens and writes the messages. Its own client does not send them: that
    one sleeps and tries again by itself on 429, 500 and 503, so we would neither see Retry-After nor could stop it.

    Args:
        credentials_file: Google's service account file.
        base_url: Of FCM.

    Raises:
        BadSettings: The file can't be used.
    """

    def __init__(self, http: Http, credentials_file: Path, base_url: str, timeout_seconds: float) -> None:
        try:
            certificate = credentials.Certificate(str(credentials_file))
        except (OSError, ValueError):
            certificate = None
        if certificate is None or not certificate.project_id:
            raise BadSettings(
                f"DEXORDER_EVENTS_FCM_CREDENTIALS: no service account file (got {str(credentials_file)!r})"
            )
        self._http = http
        self._credential = certificate.get_credential()
        self._url = f"{base_url.rstrip('/')}/v1/projects/{certificate.project_id}/messages:send"
        self._request = partial(Request(), timeout=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._refresh: asyncio.Future[None] | None = None

    async def send(self, message: Message, token: str) -> Result:
        """One call of FCM, and one for an access token about once an hour."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._have_access()
                headers = {"Authorization": f"Bearer {self._credential.token}", "Content-Type": "application/json"}
                answer = await self._http.post(self._url, data=_data(message, token), headers=headers)
        except TimeoutError:
            return Later(TIMEOUT)
        except TransportError:
            return Later(NO_CONNECTION)
        except GoogleAuthError as error:
            return Later(NO_CONNECTION) if error.retryable else Refused("our FCM account is refused")
        return answer if isinstance(answer, Later) else _result(answer, token)

    async def _have_access(self) -> None:
        """Wait for an access token. One thread asks for it, however many wait and give up."""
        if self._credential.valid:
            return
        if self._refresh is None or self._refresh.done():
            loop = asyncio.get_running_loop()
            self._refresh = loop.run_in_executor(None, self._credential.refresh, self._request)
            self._refresh.add_done_callback(lambda done: done.cancelled() or done.exception())  # if nobody waits
        await asyncio.shield(self._refresh)


def _data(message: Message, token: str) -> bytes:
    """The request's body; a later copy with the same reference takes the earlier one's place on the phone."""
    critical, kept = message.priority is Priority.CRITICAL, _KEPT_SECONDS[message.priority]
    written = messaging.Message(
        notification=messaging.Notification(
            cut(message.title, _MOST_TITLE_BYTES, utf8_bytes), cut(message.body, _MOST_BODY_BYTES, utf8_bytes)
        ),
        data={"reference": message.reference},
        android=messaging.AndroidConfig(
            collapse_key=message.reference,
            priority="high" if critical else "normal",
            ttl=kept,
            notification=messaging.AndroidNotification(tag=message.reference),
        ),
        apns=messaging.APNSConfig(
            headers={"apns-collapse-id": message.reference, "apns-priority": "10" if critical else "5"}
        ),
    )
    written.token = token  # the constructor warns of tokens, for which FCM would rather see installation ids
    return json.dumps({"message": json.loads(str(written))}, ensure_ascii=False).encode()


def _result(answer: Answer, token: str) -> Result:
    if answer.ok:
        return Sent()
    code = _error_code(answer)
    gone = (token,) if code == _UNREGISTERED else ()
    return answer.later() or Refused(_REASONS.get(code, "not accepted"), gone)


def _error_code(answer: Answer) -> str:
    """FCM's own code where it gives one, else Google's."""
    error = answer.json().get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    found = [part.get("errorCode") for part in details if isinstance(part, dict)] if isinstance(details, list) else []
    return str(next((code for code in found if code), error.get("status", "")))
