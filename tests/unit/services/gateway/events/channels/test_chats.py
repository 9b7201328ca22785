"""Telegram, Discord, Slack and Matrix, each against a server that parses its markup as strictly as the real one."""

from __future__ import annotations

import pytest

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import ChannelRegistry
from dexorder_gateway.events.model import Contacts, Later, Result, SendRefused, Sent
from tests.fakes.events.chat import UNKNOWN_WEBHOOK, discord_too_many, failed, slack_too_many, too_many
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.providers import Providers
from tests.fakes.events.scripted import Reply, ScriptedServer
from tests.unit.services.gateway.events.samples import MESSAGE, NASTY, SILENCE, message

SERVERS = {
    Channel.TELEGRAM: "bot",
    Channel.DISCORD: "discord",
    Channel.SLACK: "slack",
    Channel.MATRIX: "matrix",
}
"""Each channel's server in `Providers`."""
by_channel = pytest.mark.parametrize("channel", SERVERS, ids=lambda channel: channel.name)


def reachable(providers: Providers) -> Contacts:
    """Return a user's contacts on all of them."""
    return contacts_with(
        telegram_chat_id="4711",
        discord_webhook_url=f"{providers.discord.webhook()}?thread_id=7",
        slack_webhook_url=providers.slack.webhook(),
        matrix_webhook_url=providers.matrix.webhook(),
    )


async def test_telegram_shows_a_message_as_it_was_written(providers: Providers, channels: ChannelRegistry) -> None:
    assert await channels[Channel.TELEGRAM].send(message(NASTY, f"{NASTY}\nagain"), reachable(providers)) == Sent()
    (text,) = providers.bot.texts
    assert (text.chat_id, text.text) == ("4711", f"{NASTY}\n{NASTY}\nagain")


@pytest.mark.parametrize("filler", ["&", "<", "x", "😀", "é"])
async def test_a_long_message_is_cut_to_what_telegram_takes(
    filler: str, providers: Providers, channels: ChannelRegistry
) -> None:
    assert await channels[Channel.TELEGRAM].send(message(filler * 9000, filler * 9000), reachable(providers)) == Sent()
    assert providers.bot.texts[0].text.endswith(f"{filler}…")
    assert len(providers.bot.texts[0].text.encode("utf-16-le")) // 2 >= 4090


async def test_discord_gets_text_without_markup_or_mentions_and_says_when_it_is_stored(
    providers: Providers, channels: ChannelRegistry
) -> None:
    assert (
        await channels[Channel.DISCORD].send(message("a_b*", f"{NASTY}\n> q\n- l\n1 > 0"), reachable(providers))
        == Sent()
    )
    ((_, text),) = providers.discord.texts
    assert text == (
        "**a\\_b\\***\n"
        "\\<b>1 & 2\\</b> &amp; \\<!channel> \\<@123> @everyone \\*a\\* \\_b\\_ \\`c\\` \\~d\\~ \\|\\|e\\|\\|"
        ' \\[f\\](https://x.test/_g_) \\\\ "q"\n\\> q\n\\- l\n1 > 0'
    )
    (call,) = providers.discord.calls
    assert call.query == {"thread_id": "7", "wait": "true"}
    assert call.json["allowed_mentions"] == {"parse": []}


async def test_discord_gets_no_quotes_headings_or_lists(providers: Providers, channels: ChannelRegistry) -> None:
    table = {
        "> q": r"\> q",
        "  > q": r"  \> q",
        "\t>>> q": "\t" + r"\>>> q",
        "\u3000> q": "\u3000" + r"\> q",
        ">": r"\>",
        "- l": r"\- l",
        "   - l": r"   \- l",
        " -# small": r" \-# small",
        "-1": r"\-1",
        " * l": r" \* l",
        "# h": r"\# h",
        " ### h": r" \### h",
        "7. l": r"7\. l",
        "  12. l": r"  12\. l",
        "1 > 0": "1 > 0",
        "BTC-USD": "BTC-USD",
        "0.5 - 1.5": "0.5 - 1.5",
        "  plain": "  plain",
        "  https://x.test/-_#a": "  https://x.test/-_#a",
        "": "",
    }
    assert await channels[Channel.DISCORD].send(message(" - t", "\n".join(table)), reachable(providers)) == Sent()
    ((_, text),) = providers.discord.texts
    assert text.split("\n") == [r"** \- t**", *table.values()]


async def test_slack_gets_text_without_markup(providers: Providers, channels: ChannelRegistry) -> None:
    assert await channels[Channel.SLACK].send(message(NASTY, NASTY), reachable(providers)) == Sent()
    ((_, text),) = providers.slack.texts
    assert "<" not in text and ">" not in text
    assert text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == f"{NASTY}\n{NASTY}"
    assert providers.slack.calls[0].json["mrkdwn"] is False


async def test_matrix_gets_text_and_html_without_markup(providers: Providers, channels: ChannelRegistry) -> None:
    assert await channels[Channel.MATRIX].send(message("<t>", "a & b\n*c*"), reachable(providers)) == Sent()
    assert providers.matrix.calls[0].json == {"text": "<t>\na & b\n*c*", "html": "<b>&lt;t&gt;</b><br>a &amp; b<br>*c*"}


@pytest.mark.parametrize("filler", ["&", "*", "x", "😀", "-", "\n> ", "\n 1. "])
async def test_long_messages_are_cut(filler: str, providers: Providers, channels: ChannelRegistry) -> None:
    long = message("*" * 9000, filler * 9000)
    assert await channels[Channel.DISCORD].send(long, reachable(providers)) == Sent()
    assert await channels[Channel.SLACK].send(long, reachable(providers)) == Sent()
    assert await channels[Channel.MATRIX].send(long, reachable(providers)) == Sent()
    assert 990 < len(providers.discord.texts[0][1]) <= 2000
    assert len(providers.slack.texts[0][1]) <= 4000
    assert len(str(providers.matrix.calls[0].json).encode()) <= 40_000 < 65_536


@pytest.mark.parametrize(
    ("channel", "reply", "result"),
    [
        (Channel.TELEGRAM, failed(403, "Forbidden: bot was blocked by the user"), SendRefused("blocked by the user")),
        (
            Channel.TELEGRAM,
            failed(403, "Forbidden: user is deactivated"),
            SendRefused("the user's account is deactivated"),
        ),
        (
            Channel.TELEGRAM,
            failed(403, "Forbidden: bot can't initiate conversation with a user"),
            SendRefused("the user has not started our bot"),
        ),
        (
            Channel.TELEGRAM,
            failed(403, "Forbidden: bot was kicked from the supergroup chat"),
            SendRefused("our bot was removed from the chat"),
        ),
        (Channel.TELEGRAM, failed(400, "Bad Request: chat not found"), SendRefused("no such chat")),
        (Channel.TELEGRAM, failed(400, "Bad Request: about 4711"), SendRefused("not accepted")),
        (
            Channel.TELEGRAM,
            failed(400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=-100),
            SendRefused("the chat has moved"),
        ),
        (Channel.TELEGRAM, failed(401, "Unauthorized"), SendRefused("our bot's token is refused")),
        (Channel.TELEGRAM, failed(404, "Not Found"), SendRefused("our bot's token is refused")),
        (Channel.TELEGRAM, too_many(3), Later("too many requests", 3000)),
        (Channel.TELEGRAM, Reply(429, "no JSON", {"Retry-After": "2"}), Later("too many requests", 2000)),
        (Channel.TELEGRAM, Reply(429, {"parameters": {"retry_after": "soon"}}), Later("too many requests")),
        (Channel.TELEGRAM, Reply(429, {"parameters": [1]}), Later("too many requests")),
        (Channel.TELEGRAM, failed(502, "Bad Gateway"), Later("the provider has an error")),
        (Channel.TELEGRAM, Reply(302, "", {"Location": "/elsewhere"}), SendRefused("not accepted")),
        (Channel.DISCORD, discord_too_many(0.25), Later("too many requests", 250)),
        (Channel.DISCORD, Reply(429, "by the edge", {"Retry-After": "4"}), Later("too many requests", 4000)),
        (Channel.DISCORD, UNKNOWN_WEBHOOK, SendRefused("no such webhook")),
        (
            Channel.DISCORD,
            Reply(401, {"message": "Invalid Webhook Token", "code": 50027}),
            SendRefused("the webhook's token is refused"),
        ),
        (Channel.DISCORD, Reply(403, {"message": "Missing Access"}), SendRefused("the webhook is refused")),
        (Channel.DISCORD, Reply(400, {"message": "Invalid Form Body"}), SendRefused("not accepted")),
        (Channel.DISCORD, Reply(503, "", {"Retry-After": "1"}), Later("the provider has an error", 1000)),
        (Channel.DISCORD, Reply(307, "", {"Location": "/api/webhooks/1234/x"}), SendRefused("not accepted")),
        (Channel.SLACK, slack_too_many(30), Later("too many requests", 30_000)),
        (Channel.SLACK, Reply(404, "no_service"), SendRefused("no such webhook")),
        (Channel.SLACK, Reply(410, "channel_is_archived"), SendRefused("the channel is archived")),
        (Channel.SLACK, Reply(403, "action_prohibited"), SendRefused("the workspace does not allow it")),
        (Channel.SLACK, Reply(403, "invalid_token"), SendRefused("the webhook's token is refused")),
        (Channel.SLACK, Reply(400, "invalid_payload of T1"), SendRefused("not accepted")),
        (Channel.SLACK, Reply(500, "rollup_error"), Later("the provider has an error")),
        (Channel.MATRIX, Reply(404, {"ok": False, "error": "Webhook not found"}), SendRefused("no such webhook")),
        (Channel.MATRIX, Reply(403, {"ok": False}), SendRefused("the webhook is refused")),
        (Channel.MATRIX, Reply(400, {"ok": False}), SendRefused("not accepted")),
        (Channel.MATRIX, Reply(429, "", {"Retry-After": "2"}), Later("too many requests", 2000)),
        (Channel.MATRIX, Reply(500, {"ok": False}), Later("the provider has an error")),
    ],
)
async def test_answers(
    channel: Channel, reply: Reply, result: Result, providers: Providers, channels: ChannelRegistry
) -> None:
    server: ScriptedServer = getattr(providers, SERVERS[channel])
    server.script(reply)
    assert await channels[channel].send(MESSAGE, reachable(providers)) == result
    assert len(server.calls) == 1


@SILENCE
async def test_a_silent_provider_is_tried_later(providers: Providers, channels: ChannelRegistry) -> None:
    providers.bot.script(Reply(hang=True))
    assert await channels[Channel.TELEGRAM].send(MESSAGE, reachable(providers)) == Later("timeout")
    assert len(providers.bot.calls) == 1


@by_channel
async def test_an_unreachable_provider_is_tried_later(
    channel: Channel, providers: Providers, channels: ChannelRegistry
) -> None:
    contacts, server = reachable(providers), getattr(providers, SERVERS[channel])
    await server.__aexit__(None, None, None)
    assert await channels[channel].send(MESSAGE, contacts) == Later("no connection")


@by_channel
async def test_a_user_without_a_contact_costs_no_call(
    channel: Channel, providers: Providers, channels: ChannelRegistry
) -> None:
    assert channels.reachable(channel, Contacts()) == "no contact"
    assert await channels[channel].send(MESSAGE, Contacts()) == SendRefused("no contact")
    assert not getattr(providers, SERVERS[channel]).calls


async def test_hosts_that_are_not_listed_are_never_called(providers: Providers, channels: ChannelRegistry) -> None:
    elsewhere = contacts_with(
        discord_webhook_url=providers.slack.webhook(), slack_webhook_url=providers.discord.webhook()
    )
    for channel in (Channel.DISCORD, Channel.SLACK):
        assert channels.reachable(channel, elsewhere) == "host not allowed"
        assert await channels[channel].send(MESSAGE, elsewhere) == SendRefused("host not allowed")
    assert not providers.slack.calls and not providers.discord.calls
