"""Mails through one mail server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from pydantic import SecretStr

from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.http import Http
from dexorder_gateway.events.channels.spec import ChannelAdapter, ChannelSpec, EventChannelSettings, TextField, matches

_PART = r"[^\s@<>\",;:\\\x00-\x1f\x7f]"
_check = matches(rf"{_PART}{{1,64}}@{_PART}{{1,189}}", "is not an address of the form name@host")


class EmailSettings(EventChannelSettings):
    """The mail server."""

    smtp_url: SecretStr = SecretStr("")
    """``smtp://user:password@host:port`` (STARTTLS where offered) or ``smtps://``; empty turns e-mail off."""
    smtp_from: str = "dexorder@localhost"
    """Sender address of e-mails: ``name@host`` or ``Name <name@host>``."""


def _open(settings: EmailSettings, http: Http, stack: AsyncExitStack) -> ChannelAdapter | None:
    if not settings.smtp_url.get_secret_value():
        return None
    from dexorder_gateway.events.channels.smtp import Email

    email = Email(settings, http.timeout_seconds)
    stack.push_async_callback(email.close)
    return email


SPEC: Final = ChannelSpec(
    channel=Channel.EMAIL,
    word="E-mail",
    place=3,
    settings=EmailSettings,
    contacts=(
        TextField("email", matches(f"{_PART}{{1,64}}@{_PART}{{1,189}}", "is not an address of the form name@host")),
    ),
    open=_open,
    setup="`SMTP_URL`, `SMTP_FROM`",
)
