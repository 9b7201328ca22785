"""Incoming webhooks of Discord and Slack."""

from __future__ import annotations

from tests.fakes.events.scripted import Call, Reply, ScriptedServer

DISCORD_MOST_TEXT = 2000


class Discord(ScriptedServer):
    """``texts`` are the contents that were taken, each with its webhook's path."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, str]] = []

    def webhook(self, name: str = "a-webhooks-token") -> str:
        """The URL of a webhook that exists."""
        return f"{self.url}/api/webhooks/1234/{name}"

    def answer(self, call: Call) -> Reply:
        if call.method != "POST" or not call.path.startswith("/api/webhooks/1234/"):
            return UNKNOWN_WEBHOOK
        asked = call.json
        content = asked.get("content", "")
        if asked.get("allowed_mentions") != {"parse": []}:
            return Reply(400, {"message": "this fake lets nobody be mentioned", "code": 50035})
        if not 1 <= len(content) <= DISCORD_MOST_TEXT:
            return Reply(400, {"message": "Invalid Form Body", "code": 50035})
        self.texts.append((call.path, content))
        if call.query.get("wait") == "true":
            return Reply(200, {"id": str(len(self.texts)), "content": content})
        return Reply(204)


UNKNOWN_WEBHOOK = Reply(404, {"message": "Unknown Webhook", "code": 10015})


def discord_too_many(seconds: float) -> Reply:
    """429: the body is exact, the header is whole seconds."""
    body = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
    return Reply(429, body, {"Retry-After": str(int(seconds) + 1)})


class Slack(ScriptedServer):
    """``texts`` are the texts that were taken, each with its webhook's path."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, str]] = []

    def webhook(self, name: str = "a-webhooks-secret") -> str:
        """The URL of a webhook that exists."""
        return f"{self.url}/services/T1/B1/{name}"

    def answer(self, call: Call) -> Reply:
        if not call.path.startswith("/services/T1/B1/"):
            return Reply(404, "no_service")
        text = call.json.get("text", "")
        if not text or "<!" in text:
            return Reply(400, "invalid_payload")
        self.texts.append((call.path, text))
        return Reply(200, "ok")


def slack_too_many(seconds: int) -> Reply:
    """429 as Slack says it."""
    return Reply(429, "rate_limited", {"Retry-After": str(seconds)})
