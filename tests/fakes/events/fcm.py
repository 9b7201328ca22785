"""Firebase Cloud Messaging (HTTP v1) with Google's token endpoint."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.fakes.events.scripted import Call, Reply, ScriptedServer

_MAX_MESSAGE_BYTES = 4096
_AUDIENCE = "https://oauth2.googleapis.com/token"  # whatever the endpoint's URL
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Fcm(ScriptedServer):
    """Server that accepts messages for the phones in ``phones``; ``messages`` are the accepted ones."""

    project = "dexorder-tests"

    def __init__(self) -> None:
        super().__init__()
        self.tokens = TokenEndpoint()
        self.phones: set[str] = set()
        self.messages: list[dict[str, Any]] = []

    async def __aenter__(self) -> Fcm:
        await self.tokens.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        await self.tokens.__aexit__(*error)

    def register(self) -> str:
        """Add a phone and return its registration token."""
        token = f"phone:{secrets.token_urlsafe(60)}"
        self.phones.add(token)
        return token

    def credentials(self, path: Path) -> Path:
        """Write a service account file, for ``DEXORDER_EVENTS_FCM_CREDENTIALS``."""
        path.write_text(json.dumps(self.tokens.account(self.project)))
        return path

    def secrets(self) -> set[str]:
        """Return the gateway's and Google's secrets: lines of the account's key, assertions, access token."""
        pem = self.tokens.account(self.project)["private_key"].splitlines()
        signed = {parse_qs(call.body.decode())["assertion"][0] for call in list(self.tokens.calls)}
        return {self.tokens.access_token, *pem[1:-1], *signed}

    def answer(self, call: Call) -> Reply:
        if call.headers.get("Authorization") != f"Bearer {self.tokens.access_token}":
            return fcm_error(401, "UNAUTHENTICATED")
        if call.path != f"/v1/projects/{self.project}/messages:send":
            return fcm_error(404, "NOT_FOUND")
        message = call.json.get("message", {})
        if len(json.dumps(message, ensure_ascii=False).encode()) > _MAX_MESSAGE_BYTES:
            return fcm_error(400, "INVALID_ARGUMENT")
        if message.get("token") not in self.phones:
            return UNREGISTERED
        self.messages.append(message)
        return Reply(200, {"name": f"projects/{self.project}/messages/{len(self.messages)}"})


class TokenEndpoint(ScriptedServer):
    """Server that returns ``access_token`` for an assertion signed with the service account's key."""

    def __init__(self) -> None:
        super().__init__()
        self.access_token = f"ya29.{secrets.token_urlsafe(30)}"
        self._key = _key()

    def account(self, project: str) -> dict[str, str]:
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": project,
            "private_key_id": "k1",
            "private_key": pem.decode(),
            "client_email": f"tests@{project}.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.url}/token",
        }

    def answer(self, call: Call) -> Reply:
        form = parse_qs(call.body.decode())
        try:
            jwt.decode(form["assertion"][0], self._key.public_key(), ["RS256"], audience=_AUDIENCE)
            assert form["grant_type"] == [_GRANT]
        except (jwt.InvalidTokenError, KeyError, AssertionError):
            return Reply(400, {"error": "invalid_grant"})
        return Reply(200, {"access_token": self.access_token, "expires_in": 3599, "token_type": "Bearer"})


@cache
def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def fcm_error(status: int, code: str, fcm_code: str = "", headers: Mapping[str, str] | None = None) -> Reply:
    """Return an error of Google's APIs; ``fcm_code`` is FCM's more specific code."""
    error: dict[str, Any] = {"code": status, "status": code, "message": "said by the fake"}
    if fcm_code:
        error["details"] = [{"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": fcm_code}]
    return Reply(status, {"error": error}, headers or {})


UNREGISTERED = fcm_error(404, "NOT_FOUND", "UNREGISTERED")
