"""Mails against a real SMTP server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from dexorder_common.config import BadSettings
from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.channels import email as email_module
from dexorder_gateway.events.channels.email import Email, EmailSettings
from dexorder_gateway.events.channels.registry import ChannelRegistry
from dexorder_gateway.events.model import Later, Result, SendRefused, Sent
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.providers import Providers
from tests.fakes.events.smtp import NO_MAILBOX, TEMPORARY, MailServer, SmtpReply
from tests.fixtures_tls import Authority
from tests.unit.services.gateway.events.samples import MESSAGE, SILENCE, message

ALICE = contacts_with(email="alice@example.test")


@asynccontextmanager
async def opened(server: MailServer, url: str = "") -> AsyncIterator[Email]:
    email = Email(
        EmailSettings(smtp_url=SecretStr(url or server.url), smtp_from="Dexorder <gateway@dexorder.test>"), 1.0
    )
    try:
        yield email
    finally:
        await email.close()


async def test_a_mail(providers: Providers, channels: ChannelRegistry) -> None:
    sent = message("Order filled: 1 € \r\nBcc: eve@example.test\x00", "Zeile – 1\n.\nend")
    assert await channels[Channel.EMAIL].send(sent, ALICE) == Sent()
    (mail,) = providers.mail.mails
    assert (mail.sender, mail.recipient) == ("gateway@dexorder.test", "alice@example.test")
    assert mail.message["Message-ID"] == f"<{MESSAGE.reference}@dexorder.test>"
    assert mail.message["Subject"] == "Order filled: 1 € Bcc: eve@example.test"
    assert mail.message["Bcc"] is None and mail.message["To"] == "alice@example.test"
    assert mail.message["Importance"] == "high" and mail.message["Auto-Submitted"] == "auto-generated"
    assert mail.message.get_content().replace("\r\n", "\n") == "Zeile – 1\n.\nend\n"
    assert await channels[Channel.EMAIL].send(message(priority=Priority.NORMAL), ALICE) == Sent()
    assert providers.mail.mails[1].message["Importance"] is None


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (TEMPORARY, Later("temporarily refused by the mail server")),
        (SmtpReply("452 4.2.2 full", at_data=True), Later("temporarily refused by the mail server")),
        (NO_MAILBOX, SendRefused("no such address")),
        (SmtpReply("550 alice@example.test unknown"), SendRefused("no such address")),
        (SmtpReply("550 5.7.1 blocked alice@example.test"), SendRefused("refused by the mail server's policy")),
        (SmtpReply("552 5.2.2 full"), SendRefused("the mailbox is full or closed")),
        (SmtpReply("554 5.7.1 spam", at_data=True), SendRefused("refused by the mail server's policy")),
        (SmtpReply("554 no", at_data=True), SendRefused("refused by the mail server")),
    ],
)
async def test_answers(reply: SmtpReply, result: Result, providers: Providers, channels: ChannelRegistry) -> None:
    await check_answer(reply, result, providers, channels)


@SILENCE
@pytest.mark.parametrize("at_data", [False, True])
async def test_silence(at_data: bool, providers: Providers, channels: ChannelRegistry) -> None:
    await check_answer(SmtpReply("250 ok", at_data=at_data, hang=True), Later("timeout"), providers, channels)


async def check_answer(reply: SmtpReply, result: Result, providers: Providers, channels: ChannelRegistry) -> None:
    providers.mail.script(reply)
    assert await channels[Channel.EMAIL].send(MESSAGE, ALICE) == result
    assert len(providers.mail.attempts) == 1 and not providers.mail.mails
    assert await channels[Channel.EMAIL].send(MESSAGE, ALICE) == Sent()


@pytest.mark.parametrize(
    "address",
    [
        "alice",
        "@example.test",
        "alice@",
        "a@b.test, eve@example.test",
        "a@b.test\r\nRCPT TO:<eve@example.test>",
        "Alice <a@b.test>",
        "a b@c.test",
        "a@b@c.test",
        "a\x00@b.test",
        "<a@b.test>",
    ],
)
async def test_anything_but_a_single_address_is_refused_without_a_call(
    address: str, providers: Providers, channels: ChannelRegistry
) -> None:
    assert await channels[Channel.EMAIL].send(MESSAGE, contacts_with(email=address)) == SendRefused("no valid address")
    assert not providers.mail.connections


async def test_connections_are_reused_until_they_break(providers: Providers, channels: ChannelRegistry) -> None:
    providers.mail.script(SmtpReply("250 ok"), NO_MAILBOX, SmtpReply("250 ok"))
    for _ in range(4):
        await channels[Channel.EMAIL].send(MESSAGE, ALICE)
    assert providers.mail.connections == 1
    providers.mail.hang_up()
    await asyncio.sleep(0.05)
    assert await channels[Channel.EMAIL].send(MESSAGE, ALICE) == Sent()
    await asyncio.gather(*[channels[Channel.EMAIL].send(MESSAGE, ALICE) for _ in range(5)])
    assert providers.mail.connections == 6


async def test_an_unreachable_server_is_tried_later() -> None:
    async with MailServer() as server:
        url = server.url
    async with opened(server, url) as email:
        assert await email.send(MESSAGE, ALICE) == Later("no connection")


def tls(folder: Path) -> tuple[ssl.SSLContext, Path]:
    authority = Authority(folder)
    pair = authority.server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    return context, authority.ca


async def test_starttls_is_used_where_it_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, authority = tls(tmp_path)
    async with MailServer(tls=context, login=("us er", "p@ss/word")) as server:
        url = server.url.replace("us er:p@ss/word", "us%20er:p%40ss%2Fword")
        async with opened(server, url) as email:
            assert await email.send(MESSAGE, ALICE) == Later("no connection")  # of an authority we do not know
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        async with opened(server, url) as email:
            assert await email.send(MESSAGE, ALICE) == Sent()
        assert server.mails[0].tls
        async with opened(server, url.replace("us%20er", "eve")) as email:
            assert await email.send(MESSAGE, ALICE) == SendRefused("our mail account is refused")


async def test_a_password_leaves_this_machine_only_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MailServer(login=("user", "word")) as server:
        async with opened(server) as email:
            assert await email.send(MESSAGE, ALICE) == Sent()
        monkeypatch.setattr(email_module, "is_loopback", lambda address: False)
        async with opened(server) as email:
            assert await email.send(MESSAGE, ALICE) == Later("no connection")
        assert len(server.mails) == 1


@pytest.mark.parametrize(
    "url", ["mail.test", "http://mail.test", "smtp://", "smtp://mail.test:x", "smtp://u:secret@h:0x"]
)
def test_an_invalid_url_is_reported_by_its_variable_and_not_shown(url: str) -> None:
    with pytest.raises(BadSettings, match="DEXORDER_EVENTS_SMTP_URL") as error:
        Email(EmailSettings(smtp_url=SecretStr(url), smtp_from="a@b.test"), 1.0)
    assert "secret" not in str(error.value)
    with pytest.raises(BadSettings, match="DEXORDER_EVENTS_SMTP_FROM"):
        Email(EmailSettings(smtp_url=SecretStr("smtp://mail.test"), smtp_from="nobody"), 1.0)
