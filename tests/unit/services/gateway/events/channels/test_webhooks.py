"""Discord, Slack and Matrix."""

from __future__ import annotations

import pytest

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import ChannelRegistry
from dexorder_gateway.events.model import Contacts, Later, Result, SendRefused, Sent
from tests.fakes.events.chat import UNKNOWN_WEBHOOK, discord_too_many, slack_too_many
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.providers import Providers
from tests.fakes.events.scripted import Reply
from tests.unit.services.gateway.events.channels.messages import MESSAGE, NASTY, message


def discord(providers: Providers) -> Contacts:
    return contacts_with(discord_webhook_url=f"{providers.discord.webhook()}?thread_id=7")


def slack(providers: Providers) -> Contacts:
    return contacts_with(slack_webhook_url=providers.slack.webhook())


def matrix(providers: Providers) -> Contacts:
    return contacts_with(matrix_webhook_url=providers.matrix.webhook())


async def test_discord_gets_text_without_markup_or_mentions_and_says_when_it_is_stored(
    providers: Providers, channels: ChannelRegistry
) -> None:
    assert (
        await channels[Channel.DISCORD].send(message("a_b*", f"{NASTY}\n> q\n- l\n1 > 0"), discord(providers)) == Sent()
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
    assert await channels[Channel.DISCORD].send(message(" - t", "\n".join(table)), discord(providers)) == Sent()
    ((_, text),) = providers.discord.texts
    assert text.split("\n") == [r"** \- t**", *table.values()]


async def test_slack_gets_text_without_markup(providers: Providers, channels: ChannelRegistry) -> None:
    assert await channels[Channel.SLACK].send(message(NASTY, NASTY), slack(providers)) == Sent()
    ((_, text),) = providers.slack.texts
    assert "<" not in text and ">" not in text
    assert text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == f"{NASTY}\n{NASTY}"
    assert providers.slack.calls[0].json["mrkdwn"] is False


async def test_matrix_gets_text_and_html_without_markup(providers: Providers, channels: ChannelRegistry) -> None:
    assert await channels[Channel.MATRIX].send(message("<t>", "a & b\n*c*"), matrix(providers)) == Sent()
    assert providers.matrix.calls[0].json == {"text": "<t>\na & b\n*c*", "html": "<b>&lt;t&gt;</b><br>a &amp; b<br>*c*"}


@pytest.mark.parametrize("filler", ["&", "*", "x", "😀", "-", "\n> ", "\n 1. "])
async def test_long_messages_are_cut(filler: str, providers: Providers, channels: ChannelRegistry) -> None:
    long = message("*" * 9000, filler * 9000)
    assert await channels[Channel.DISCORD].send(long, discord(providers)) == Sent()
    assert await channels[Channel.SLACK].send(long, slack(providers)) == Sent()
    assert await channels[Channel.MATRIX].send(long, matrix(providers)) == Sent()
    assert 990 < len(providers.discord.texts[0][1]) <= 2000
    assert len(providers.slack.texts[0][1]) <= 4000
    assert len(str(providers.matrix.calls[0].json).encode()) <= 40_000 < 65_536


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (discord_too_many(0.25), Later("too many requests", 250)),
        (Reply(429, "by the edge", {"Retry-After": "4"}), Later("too many requests", 4000)),
        (UNKNOWN_WEBHOOK, SendRefused("no such webhook")),
        (
            Reply(401, {"message": "Invalid Webhook Token", "code": 50027}),
            SendRefused("the webhook's token is refused"),
        ),
        (Reply(403, {"message": "Missing Access"}), SendRefused("the webhook is refused")),
        (Reply(400, {"message": "Invalid Form Body"}), SendRefused("not accepted")),
        (Reply(503, "", {"Retry-After": "1"}), Later("the provider has an error", 1000)),
        (Reply(307, "", {"Location": "/api/webhooks/1234/x"}), SendRefused("not accepted")),
    ],
)
async def test_answers_of_discord(
    reply: Reply, result: Result, providers: Providers, channels: ChannelRegistry
) -> None:
    providers.discord.script(reply)
    assert await channels[Channel.DISCORD].send(MESSAGE, discord(providers)) == result
    assert len(providers.discord.calls) == 1


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (slack_too_many(30), Later("too many requests", 30_000)),
        (Reply(404, "no_service"), SendRefused("no such webhook")),
        (Reply(410, "channel_is_archived"), SendRefused("the channel is archived")),
        (Reply(403, "action_prohibited"), SendRefused("the workspace does not allow it")),
        (Reply(403, "invalid_token"), SendRefused("the webhook's token is refused")),
        (Reply(400, "invalid_payload of T1"), SendRefused("not accepted")),
        (Reply(500, "rollup_error"), Later("the provider has an error")),
    ],
)
async def test_answers_of_slack(reply: Reply, result: Result, providers: Providers, channels: ChannelRegistry) -> None:
    providers.slack.script(reply)
    assert await channels[Channel.SLACK].send(MESSAGE, slack(providers)) == result
    assert len(providers.slack.calls) == 1


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (Reply(404, {"ok": False, "error": "Webhook not found"}), SendRefused("no such webhook")),
        (Reply(403, {"ok": False}), SendRefused("the webhook is refused")),
        (Reply(400, {"ok": False}), SendRefused("not accepted")),
        (Reply(429, "", {"Retry-After": "2"}), Later("too many requests", 2000)),
        (Reply(500, {"ok": False}), Later("the provider has an error")),
    ],
)
async def test_answers_of_matrix(reply: Reply, result: Result, providers: Providers, channels: ChannelRegistry) -> None:
    providers.matrix.script(reply)
    assert await channels[Channel.MATRIX].send(MESSAGE, matrix(providers)) == result
    assert len(providers.matrix.calls) == 1


async def test_hosts_that_are_not_listed_are_never_called(providers: Providers, channels: ChannelRegistry) -> None:
    elsewhere = contacts_with(
        discord_webhook_url=providers.slack.webhook(), slack_webhook_url=providers.discord.webhook()
    )
    for channel in (Channel.DISCORD, Channel.SLACK):
        assert channels.reachable(channel, elsewhere) == "host not allowed"
        assert await channels[channel].send(MESSAGE, elsewhere) == SendRefused("host not allowed")
        assert await channels[channel].send(MESSAGE, Contacts()) == SendRefused("no contact")
    assert not providers.slack.calls and not providers.discord.calls
