"""With every logger at DEBUG, no secret and no contact of a user is in a log line or in a result's reason."""

from __future__ import annotations

import asyncio
import logging

import pytest
from pydantic import SecretStr

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import ChannelRegistry
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.model import Contacts, Later, SendRefused, Sent
from tests.fakes.events.contacts import contacts_with, destinations
from tests.fakes.events.providers import Providers
from tests.fakes.events.scripted import Reply
from tests.fakes.events.smtp import SmtpReply
from tests.unit.services.gateway.events.samples import HASTE_S, MESSAGE, PATIENCE_S

OF_FAKES = ("mail.log", "mail.debug")


def contacts(providers: Providers) -> Contacts:
    return contacts_with(
        telegram_chat_id="4711471147",
        email="alice.secret@example.test",
        web_push=(providers.push.subscribe(),),
        mobile_tokens=(providers.fcm.register(),),
        discord_webhook_url=providers.discord.webhook("discord-webhooks-token"),
        slack_webhook_url=providers.slack.webhook("slack-webhooks-token"),
        matrix_webhook_url=providers.matrix.webhook("matrix-webhooks-token"),
    )


def secrets(providers: Providers, user: Contacts) -> list[str]:
    (browser,) = destinations(user, "web_push")
    return [
        user.address(Channel.TELEGRAM),
        user.address(Channel.EMAIL),
        browser.endpoint,
        browser.endpoint.removeprefix(providers.push.url),
        browser.p256dh,
        browser.auth,
        *destinations(user, "mobile_tokens"),
        "discord-webhooks-token",
        "slack-webhooks-token",
        "matrix-webhooks-token",
        providers.bot.token,
        providers.fcm.tokens.access_token,
        "PRIVATE KEY",
        "Bearer ",
        "vapid t=",
        "assertion=",
        *[call.headers.get("Authorization", "-" * 9) for call in providers.push.calls],
    ]


@pytest.mark.parametrize(
    ("fail", "settings"),
    [
        ("not at all", PATIENCE_S),
        ("for good", PATIENCE_S),
        ("for now", PATIENCE_S),
        ("silently", HASTE_S),
        ("by hanging up", PATIENCE_S),
    ],
    indirect=["settings"],
)
async def test_nothing_leaks(
    fail: str,
    providers: Providers,
    all_channels: ChannelRegistry,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    user = contacts(providers)
    echo = " ".join(secrets(providers, user))
    for server in providers.web:
        if fail == "for good":
            server.always = Reply(400, {"description": echo, "message": echo, "error": {"status": echo}})
        elif fail == "for now":
            server.always = Reply(500, {"description": echo})
        elif fail == "silently":
            server.always = Reply(hang=True)
        elif fail == "by hanging up":
            await server.__aexit__(None, None, None)
    providers.mail.always = {
        "for good": SmtpReply(f"550 {user.address(Channel.EMAIL)} is unknown"),
        "for now": SmtpReply(f"451 {user.address(Channel.EMAIL)} is slow"),
        "silently": SmtpReply("250 ok", hang=True),
        "by hanging up": SmtpReply("421 go away"),
    }.get(fail)
    results = await asyncio.gather(*[channel.send(MESSAGE, user) for channel in all_channels.values()])
    reasons = " ".join(result.reason for result in results if not isinstance(result, Sent))
    assert not [secret for secret in secrets(providers, user) if secret in reasons]
    assert set(map(type, results)) == {Sent if fail == "not at all" else SendRefused if fail == "for good" else Later}
    records = [record for record in caplog.records if record.name not in OF_FAKES]
    # the libraries did speak: silence would prove nothing
    assert fail == "by hanging up" or any(record.name.startswith("urllib3") for record in records)
    output = "\n".join([*map(logging.Formatter("%(name)s %(message)s").format, records), *capfd.readouterr()])
    assert not [secret for secret in secrets(providers, user) if secret in output]


def test_settings_and_contacts_hide_their_secrets(settings: EventsSettings, providers: Providers) -> None:
    hidden = settings.model_copy(update={"smtp_url": SecretStr("smtp://u:secret@h")})
    output = repr(hidden) + repr(contacts(providers))
    assert "secret@h" not in output and providers.bot.token not in output
    assert "webhooks-token" not in output and "phone:" not in output
