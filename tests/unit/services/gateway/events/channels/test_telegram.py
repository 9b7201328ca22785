"""The bot against a Bot API that parses markup as strictly as the real one."""

from __future__ import annotations

import pytest

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import ChannelRegistry
from dexorder_gateway.events.model import Contacts, Later, Result, SendRefused, Sent
from tests.fakes.events.chat import failed, too_many
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.providers import Providers
from tests.fakes.events.scripted import Reply
from tests.unit.services.gateway.events.channels.messages import MESSAGE, NASTY, SILENCE, message

CHAT = contacts_with(telegram_chat_id="4711")


async def test_a_message_arrives_as_it_was_written(providers: Providers, channels: ChannelRegistry) -> None:
    assert await channels[Channel.TELEGRAM].send(message(NASTY, f"{NASTY}\nagain"), CHAT) == Sent()
    (text,) = providers.bot.texts
    assert (text.chat_id, text.text) == ("4711", f"{NASTY}\n{NASTY}\nagain")


@pytest.mark.parametrize("filler", ["&", "<", "x", "😀", "é"])
async def test_a_long_message_is_cut_to_what_telegram_takes(
    filler: str, providers: Providers, channels: ChannelRegistry
) -> None:
    assert await channels[Channel.TELEGRAM].send(message(filler * 9000, filler * 9000), CHAT) == Sent()
    assert providers.bot.texts[0].text.endswith(f"{filler}…")
    assert len(providers.bot.texts[0].text.encode("utf-16-le")) // 2 >= 4090


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (failed(403, "Forbidden: bot was blocked by the user"), SendRefused("blocked by the user")),
        (failed(403, "Forbidden: user is deactivated"), SendRefused("the user's account is deactivated")),
        (
            failed(403, "Forbidden: bot can't initiate conversation with a user"),
            SendRefused("the user has not started our bot"),
        ),
        (
            failed(403, "Forbidden: bot was kicked from the supergroup chat"),
            SendRefused("our bot was removed from the chat"),
        ),
        (failed(400, "Bad Request: chat not found"), SendRefused("no such chat")),
        (failed(400, "Bad Request: about 4711"), SendRefused("not accepted")),
        (
            failed(400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=-100),
            SendRefused("the chat has moved"),
        ),
        (failed(401, "Unauthorized"), SendRefused("our bot's token is refused")),
        (failed(404, "Not Found"), SendRefused("our bot's token is refused")),
        (too_many(3), Later("too many requests", 3000)),
        (Reply(429, "no JSON", {"Retry-After": "2"}), Later("too many requests", 2000)),
        (Reply(429, {"parameters": {"retry_after": "soon"}}), Later("too many requests")),
        (Reply(429, {"parameters": [1]}), Later("too many requests")),
        (failed(502, "Bad Gateway"), Later("the provider has an error")),
        (Reply(302, "", {"Location": "/elsewhere"}), SendRefused("not accepted")),
    ],
)
async def test_answers(reply: Reply, result: Result, providers: Providers, channels: ChannelRegistry) -> None:
    providers.bot.script(reply)
    assert await channels[Channel.TELEGRAM].send(MESSAGE, CHAT) == result
    assert len(providers.bot.calls) == 1


@SILENCE
async def test_a_silent_provider_is_tried_later(providers: Providers, channels: ChannelRegistry) -> None:
    providers.bot.script(Reply(hang=True))
    assert await channels[Channel.TELEGRAM].send(MESSAGE, CHAT) == Later("timeout")
    assert len(providers.bot.calls) == 1


async def test_an_unreachable_provider_is_tried_later(providers: Providers, channels: ChannelRegistry) -> None:
    await providers.bot.__aexit__(None, None, None)
    assert await channels[Channel.TELEGRAM].send(MESSAGE, CHAT) == Later("no connection")


async def test_a_user_without_a_chat_costs_no_call(providers: Providers, channels: ChannelRegistry) -> None:
    assert channels.reachable(Channel.TELEGRAM, Contacts()) == "no contact"
    assert await channels[Channel.TELEGRAM].send(MESSAGE, Contacts()) == SendRefused("no contact")
    assert not providers.bot.calls
