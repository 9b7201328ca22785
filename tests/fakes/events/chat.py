"""Telegram's Bot API and the incoming webhooks of Discord, Slack and Matrix, as far as sending text needs them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.events.scripted import Call, Reply, ScriptedServer

MAX_TELEGRAM_TEXT = 4096
MAX_DISCORD_TEXT = 2000
_TAG = re.compile(r"</?(?:b|i|u|s|code|pre)>|<a href=\"[^\"<>]*\">|</a>")
_RAW = re.compile(r"[<>]|&(?!(?:lt|gt|amp|quot|#\d+);)")


@dataclass(frozen=True)
class Text:
    """A message as its reader sees it, without markup."""

    at: float
    chat_id: str
    text: str


class BotApi(ScriptedServer):
    """One bot; ``texts`` are the accepted messages."""

    def __init__(self, token: str = "123456:AAF-a-token-of-tests") -> None:
        super().__init__()
        self.token = token
        self.texts: list[Text] = []

    def answer(self, call: Call) -> Reply:
        if call.path != f"/bot{self.token}/sendMessage":
            return failed(401, "Unauthorized")
        body = call.json
        chat, text = str(body.get("chat_id", "")), body.get("text", "")
        if not re.fullmatch(r"-?\d+|@\w+", chat):
            return failed(400, "Bad Request: chat not found")
        if body.get("parse_mode") == "HTML":
            if _RAW.search(_TAG.sub("", text)):
                return failed(400, "Bad Request: can't parse entities: Unsupported start tag")
            text = html.unescape(_TAG.sub("", text))
        if not text.strip():
            return failed(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > MAX_TELEGRAM_TEXT:
            return failed(400, "Bad Request: message is too long")
        self.texts.append(Text(call.at, chat, text))
        return Reply(200, {"ok": True, "result": {"message_id": len(self.texts), "chat": {"id": chat}}})


def failed(status: int, description: str, **parameters: object) -> Reply:
    """Return an error of the Bot API."""
    body: dict[str, object] = {"ok": False, "error_code": status, "description": description}
    return Reply(status, body | ({"parameters": parameters} if parameters else {}))


def too_many(seconds: int) -> Reply:
    """Return the Bot API's 429."""
    return failed(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)


BLOCKED = failed(403, "Forbidden: bot was blocked by the user")


class Webhooks(ScriptedServer):
    """Webhooks at one provider; ``texts`` are the accepted texts, each with its webhook's path.

    Args:
        prefix: Path of every webhook.
        unknown: Answer to other paths.
        field: Name of the text in a body.
        accept: Answers a call with its text; a status of 200 or 204 accepts it.
    """

    def __init__(self, prefix: str, unknown: Reply, field: str, accept: Callable[[Call, str], Reply]) -> None:
        super().__init__()
        self.texts: list[tuple[str, str]] = []
        self._prefix = prefix
        self._unknown = unknown
        self._field = field
        self._accept = accept

    def webhook(self, name: str = "a-webhooks-secret") -> str:
        """Return the URL of a webhook that exists."""
        return f"{self.url}{self._prefix}{name}"

    def answer(self, call: Call) -> Reply:
        if call.method != "POST" or not call.path.startswith(self._prefix):
            return self._unknown
        text = call.json.get(self._field, "")
        reply = self._accept(call, text)
        if reply.status < 300:
            self.texts.append((call.path, text))
        return reply


def _accept_discord(call: Call, text: str) -> Reply:
    if call.json.get("allowed_mentions") != {"parse": []}:
        return Reply(400, {"message": "this fake allows no mentions", "code": 50035})
    if not 1 <= len(text) <= MAX_DISCORD_TEXT:
        return Reply(400, {"message": "Invalid Form Body", "code": 50035})
    body: dict[str, Any] = {"id": "1", "content": text}
    return Reply(200, body) if call.query.get("wait") == "true" else Reply(204)


def _accept_slack(call: Call, text: str) -> Reply:
    return Reply(200, "ok") if text and "<!" not in text else Reply(400, "invalid_payload")


def _accept_matrix(call: Call, text: str) -> Reply:
    formatted = str(call.json.get("html", ""))
    if not text or not formatted or _RAW.search(re.sub(r"</?b>|<br>", "", formatted)):
        return Reply(400, {"ok": False, "error": "this fake needs text and escaped HTML"})
    return Reply(200, {"ok": True})


UNKNOWN_WEBHOOK = Reply(404, {"message": "Unknown Webhook", "code": 10015})


def discord() -> Webhooks:
    """Return a server of Discord's webhooks."""
    return Webhooks("/api/webhooks/1234/", UNKNOWN_WEBHOOK, "content", _accept_discord)


def slack() -> Webhooks:
    """Return a server of Slack's webhooks."""
    return Webhooks("/services/T1/B1/", Reply(404, "no_service"), "text", _accept_slack)


def matrix() -> Webhooks:
    """Return a server of Hookshot's inbound webhooks."""
    return Webhooks("/webhook/", Reply(404, {"ok": False, "error": "Webhook not found"}), "text", _accept_matrix)


def discord_too_many(seconds: float) -> Reply:
    """Return Discord's 429: the body is exact, the header has whole seconds."""
    body = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
    return Reply(429, body, {"Retry-After": str(int(seconds) + 1)})


def slack_too_many(seconds: int) -> Reply:
    """Return Slack's 429."""
    return Reply(429, "rate_limited", {"Retry-After": str(seconds)})
