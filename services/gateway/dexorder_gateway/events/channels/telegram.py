"""Messages of a Telegram bot, through ``sendMessage`` of the Bot API."""

from __future__ import annotations

import html
from http import HTTPStatus
from typing import Final

from pydantic import SecretStr

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.http import Http, ProviderAnswer
from dexorder_gateway.events.channels.spec import (
    BaseUrl,
    ChannelSpec,
    EventChannelSettings,
    TextField,
    matches,
    truncate,
)
from dexorder_gateway.events.model import (
    NO_CONTACT,
    NOT_ACCEPTED,
    Contacts,
    EventMessage,
    Later,
    Result,
    SendRefused,
)

_MAX_TITLE = 256  # UTF-16 units, after the markup is parsed
_MAX_TEXT = 4096
_REASONS: Final = {
    "blocked by the user": "blocked by the user",
    "user is deactivated": "the user's account is deactivated",
    "can't initiate conversation": "the user has not started our bot",
    "was kicked": "our bot was removed from the chat",
    "not a member": "our bot was removed from the chat",
    "not enough rights": "our bot may not write in the chat",
    "upgraded to a supergroup": "the chat has moved",
    "chat not found": "no such chat",
    "chat_id is empty": "no such chat",
}
"""Reasons by parts of the Bot API's descriptions; no other word of a description is reported."""


class TelegramSettings(EventChannelSettings):
    """The bot."""

    telegram_url: BaseUrl = "https://api.telegram.org"
    """Base URL of the Bot API."""
    telegram_token: SecretStr = SecretStr("")
    """The bot's token; empty turns the channel off."""


class Telegram:
    """Client of the Bot API, for one bot."""

    def __init__(self, settings: TelegramSettings, http: Http) -> None:
        self._http = http
        self._base = settings.telegram_url.rstrip("/")
        self._token = settings.telegram_token

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        return "" if contacts.on(Channel.TELEGRAM) else NO_CONTACT

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        if reason := self.reachable(contacts):
            return SendRefused(reason)
        body = {
            "chat_id": contacts.address(Channel.TELEGRAM),
            "text": _markup(message),
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }
        url = f"{self._base}/bot{self._token.get_secret_value()}/sendMessage"
        answer = await self._http.post(url, json=body)
        return _refusal(answer) if isinstance(answer, ProviderAnswer) else answer


def _markup(message: EventMessage) -> str:
    title = truncate(message.title, _MAX_TITLE)
    body = truncate(message.body, _MAX_TEXT - _MAX_TITLE - 1)
    return f"<b>{html.escape(title, quote=False)}</b>\n{html.escape(body, quote=False)}"


def _refusal(answer: ProviderAnswer) -> Later | SendRefused:
    body = answer.json()
    parameters = body.get("parameters")
    if later := answer.later(parameters.get("retry_after") if isinstance(parameters, dict) else None):
        return later
    # 404 answers a token that does not have the form of one
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND):
        return SendRefused("our bot's token is refused")
    description = str(body.get("description")).lower()
    return SendRefused(next((reason for words, reason in _REASONS.items() if words in description), NOT_ACCEPTED))


SPEC: Final = ChannelSpec(
    channel=Channel.TELEGRAM,
    word="Telegram",
    place=1,
    settings=TelegramSettings,
    contacts=(
        TextField(
            "telegram_chat_id", matches(r"-?[0-9]{1,20}|@[A-Za-z0-9_]{4,32}", "is neither a number nor an @name")
        ),
    ),
    open=lambda settings, http, _: Telegram(settings, http) if settings.telegram_token.get_secret_value() else None,
    setup="a bot from @BotFather: `TELEGRAM_TOKEN`",
    needs="the user must have started the bot",
)
