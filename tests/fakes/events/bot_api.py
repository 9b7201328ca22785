"""Telegram's Bot API, as far as a bot that only speaks needs it."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from tests.fakes.events.scripted import Call, Reply, ScriptedServer

MOST_TEXT = 4096
_TAG = re.compile(r"</?(?:b|i|u|s|code|pre)>|<a href=\"[^\"<>]*\">|</a>")
_RAW = re.compile(r"[<>]|&(?!(?:lt|gt|amp|quot|#\d+);)")


@dataclass(frozen=True)
class Text:
    """A message as its reader sees it, without markup."""

    at: float
    chat_id: str
    text: str


class BotApi(ScriptedServer):
    """One bot; ``texts`` are the messages that were taken. Chats listed in ``blocked_by`` have blocked it."""

    def __init__(self, token: str = "123456:AAF-a-token-of-tests") -> None:
        super().__init__()
        self.token = token
        self.texts: list[Text] = []
        self.blocked_by: set[str] = set()

    def answer(self, call: Call) -> Reply:
        if call.path != f"/bot{self.token}/sendMessage":
            return failed(401, "Unauthorized")
        asked = call.json
        chat, text = str(asked.get("chat_id", "")), asked.get("text", "")
        if chat in self.blocked_by:
            return failed(403, "Forbidden: bot was blocked by the user")
        if not re.fullmatch(r"-?\d+|@\w+", chat):
            return failed(400, "Bad Request: chat not found")
        if asked.get("parse_mode") == "HTML":
            if _RAW.search(_TAG.sub("", text)):
                return failed(400, "Bad Request: can't parse entities: Unsupported start tag")
            text = html.unescape(_TAG.sub("", text))
        if not text.strip():
            return failed(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > MOST_TEXT:
            return failed(400, "Bad Request: message is too long")
        self.texts.append(Text(call.at, chat, text))
        return Reply(200, {"ok": True, "result": {"message_id": len(self.texts), "chat": {"id": chat}}})


def failed(status: int, description: str, **parameters: object) -> Reply:
    """The Bot API's way to say no."""
    body: dict[str, object] = {"ok": False, "error_code": status, "description": description}
    if parameters:
        body["parameters"] = parameters
    return Reply(status, body)


def too_many(seconds: int) -> Reply:
    """429: nothing for this many seconds."""
    return failed(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)


BLOCKED = failed(403, "Forbidden: bot was blocked by the user")
NO_CHAT = failed(400, "Bad Request: chat not found")
