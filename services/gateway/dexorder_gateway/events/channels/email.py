"""Mails through one mail server. aiosmtplib is imported only where mails are sent: the settings are read without it."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from dexorder_common.config import BadSettings, is_loopback
from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.channels.http import Http
from dexorder_gateway.events.channels.spec import ChannelSpec, EventChannelSettings, TextField, matches
from dexorder_gateway.events.model import (
    NO_CONNECTION,
    NO_CONTACT,
    TIMEOUT,
    Contacts,
    EventMessage,
    Later,
    Result,
    SendRefused,
    Sent,
)

if TYPE_CHECKING:
    import aiosmtplib

_PORTS: Final = {"smtp": 587, "smtps": 465}
_ADDRESS = re.compile(r'[^\x00-\x20\x7f@<>,;:"\\()\[\]]+@[^\x00-\x20\x7f@<>,;:"\\()\[\]]+')
_PERMANENT = 500
_DETAIL = re.compile(r"5\.(\d{1,3})\.\d{1,3}\b")
_SUBJECTS: Final = {
    "1": "no such address",
    "2": "the mailbox is full or closed",
    "6": "the mail's format is refused",
    "7": "refused by the mail server's policy",
}
"""Reasons by the second number of an enhanced status code (RFC 3463)."""
_NO_MAILBOX = frozenset({550, 551, 553})
_PART = r"[^\s@<>\",;:\\\x00-\x1f\x7f]"


class EmailSettings(EventChannelSettings):
    """The mail server."""

    smtp_url: SecretStr = SecretStr("")
    """``smtp://user:password@host:port`` (STARTTLS where offered) or ``smtps://``; empty turns e-mail off."""
    smtp_from: str = "dexorder@localhost"
    """Sender address of e-mails: ``name@host`` or ``Name <name@host>``."""


class Email:
    """Client of the mail server. Connections are reused and stay open until `close`.

    Args:
        timeout_seconds: Limit of each step of a mail.

    Raises:
        BadSettings: The URL or the sender can't be used.
    """

    def __init__(self, settings: EmailSettings, timeout_seconds: float) -> None:
        self._options = _options(settings.smtp_url.get_secret_value()) | {"timeout": timeout_seconds}
        self._from = sender = settings.smtp_from
        self._sender = parseaddr(sender)[1]
        if not _ADDRESS.fullmatch(self._sender):
            raise BadSettings(
                f"DEXORDER_EVENTS_SMTP_FROM: {sender!r} is not an address; use name@host or Name <name@host>"
            )
        self._idle: list[aiosmtplib.SMTP] = []

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        if not (address := contacts.address(Channel.EMAIL)):
            return NO_CONTACT
        return "" if _ADDRESS.fullmatch(address) else "no valid address"

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        if reason := self.reachable(contacts):
            return SendRefused(reason)
        import aiosmtplib

        recipient = contacts.address(Channel.EMAIL)
        mail = self._mail(message, recipient)
        smtp, usable = self._connection(), False
        try:
            if not smtp.is_connected:
                await smtp.connect()
            try:
                await smtp.send_message(mail, sender=self._sender, recipients=[recipient])
                result: Result = Sent()
            except (aiosmtplib.SMTPResponseException, aiosmtplib.SMTPRecipientsRefused) as error:
                result = _failure(error)
            usable = True
        except (aiosmtplib.SMTPException, OSError) as error:
            result = _failure(error)
        finally:
            if usable and smtp.is_connected:
                self._idle.append(smtp)
            else:
                smtp.close()
        return result

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> aiosmtplib.SMTP:
        import aiosmtplib

        while self._idle:
            smtp = self._idle.pop()
            if smtp.is_connected:
                return smtp
        return aiosmtplib.SMTP(**self._options)

    def _mail(self, message: EventMessage, recipient: str) -> EmailMessage:
        mail = EmailMessage()
        # the same at each attempt, so that a mail with a lost answer is recognized as a duplicate
        mail["Message-ID"] = f"<{message.reference}@{self._sender.rpartition('@')[2]}>"
        mail["Date"] = formatdate()
        mail["From"], mail["To"] = self._from, recipient
        mail["Subject"] = _one_line(message.title)
        mail["Auto-Submitted"] = "auto-generated"
        if message.priority is Priority.CRITICAL:
            mail["Importance"] = "high"
        mail.set_content(message.body)
        return mail


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def _options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    try:
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise BadSettings("DEXORDER_EVENTS_SMTP_URL: not a URL like smtp://user:password@host:port") from None
    user, password = parts.username and unquote(parts.username), parts.password and unquote(parts.password)
    encrypted = parts.scheme == "smtps"
    # STARTTLS where it is offered; required for a password, so that removing the offer can't expose it.
    start_tls = False if encrypted else True if user and not is_loopback(f"[{parts.hostname}]:{port}") else None
    return {
        "hostname": parts.hostname,
        "port": port,
        "username": user,
        "password": password,
        "use_tls": encrypted,
        "start_tls": start_tls,
    }


def _failure(error: Exception) -> Result:
    import aiosmtplib

    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        error = error.recipients[0]
    if isinstance(error, TimeoutError):
        return Later(TIMEOUT)
    if isinstance(error, aiosmtplib.SMTPNotSupported):
        return SendRefused("the mail server does not support such an address")
    if isinstance(error, aiosmtplib.SMTPConnectError) or not isinstance(error, aiosmtplib.SMTPResponseException):
        return Later(NO_CONNECTION)
    if error.code < _PERMANENT:
        return Later("temporarily refused by the mail server")
    if isinstance(error, aiosmtplib.SMTPAuthenticationError):
        return SendRefused("our mail account is refused")
    if isinstance(error, aiosmtplib.SMTPSenderRefused):
        return SendRefused("our sender address is refused")
    detail = _DETAIL.match(error.message)
    of_mailbox = isinstance(error, aiosmtplib.SMTPRecipientRefused) and error.code in _NO_MAILBOX
    plain = "no such address" if of_mailbox else "refused by the mail server"
    return SendRefused(_SUBJECTS.get(detail[1], plain) if detail else plain)


def _open(settings: EmailSettings, http: Http, stack: AsyncExitStack) -> Email | None:
    if not settings.smtp_url.get_secret_value():
        return None
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
