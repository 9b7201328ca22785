"""Mail server on aiosmtpd that records each attempt and answers by its script."""

from __future__ import annotations

import asyncio
import ssl
import time
import warnings
from collections import deque
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType
from typing import Any, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


@dataclass(frozen=True)
class Mail:
    """An accepted mail. ``tls`` says whether the connection was encrypted."""

    at: float
    sender: str
    recipient: str
    message: EmailMessage
    tls: bool


@dataclass(frozen=True)
class SmtpReply:
    """Reply to ``RCPT`` or, if ``at_data``, to the mail itself; with ``hang`` it is never sent."""

    line: str
    at_data: bool = False
    delay_seconds: float = 0.0
    hang: bool = False


TEMPORARY = SmtpReply("451 4.3.0 try again later")
NO_MAILBOX = SmtpReply("550 5.1.1 no such user here")


class MailServer:
    """Server on 127.0.0.1 while its context is open.

    Attributes:
        mails: Accepted mails in order.
        attempts: Monotonic seconds of each ``RCPT``, including refused ones.
        always: Reply after the end of the script; None accepts every mail.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None) -> None:
        self.mails: list[Mail] = []
        self.attempts: list[float] = []
        self.always: SmtpReply | None = None
        self.connections = 0
        self._script: deque[SmtpReply] = deque()
        self._present: SmtpReply | None = None
        self._tls = tls
        self._login = login
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.BaseTransport] = set()

    def script(self, *replies: SmtpReply) -> None:
        """Say these next, one a mail, in place of 250."""
        self._script.extend(replies)

    @property
    def url(self) -> str:
        """``smtp://[user:password@]127.0.0.1:port``."""
        assert self._server is not None
        user = f"{self._login[0]}:{self._login[1]}@" if self._login else ""
        return f"smtp://{user}127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hang_up(self) -> None:
        """Cut all connections."""
        for transport in self._transports:
            transport.close()

    # aiosmtpd finds its handlers by these names

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.attempts.append(time.monotonic())
        reply = self._present = self._script.popleft() if self._script else self.always
        if reply and not reply.at_data:
            return await _said(reply)
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 ok"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self._present and self._present.at_data:
            return await _said(self._present)
        assert isinstance(envelope.content, bytes) and envelope.mail_from is not None
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        sender, recipient = envelope.mail_from, envelope.rcpt_tos[0]
        self.mails.append(Mail(time.monotonic(), sender, recipient, message, session.ssl is not None))
        return "250 2.0.0 taken"

    def _authenticate(self, server: SMTP, session: Session, envelope: Envelope, how: str, data: Any) -> AuthResult:
        assert self._login and isinstance(data, LoginPassword)
        right = (data.login.decode(), data.password.decode()) == self._login
        return AuthResult(success=right, handled=False)

    def _connected(self) -> SMTP:
        self.connections += 1
        with warnings.catch_warnings(action="ignore"):  # of passwords in clear, which is what some tests are about
            server = SMTP(
                self,
                hostname="tests",
                loop=asyncio.get_running_loop(),
                tls_context=self._tls,
                enable_SMTPUTF8=True,
                authenticator=self._authenticate if self._login else None,
                auth_required=self._login is not None,
                auth_require_tls=self._tls is not None,
            )
        made = server.connection_made

        def connection_made(transport: asyncio.BaseTransport) -> None:
            self._transports.add(transport)
            made(transport)

        server.connection_made = connection_made  # type: ignore[method-assign]
        return server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await asyncio.sleep(0)


async def _said(reply: SmtpReply) -> str:
    if reply.hang:
        await asyncio.Event().wait()
    await asyncio.sleep(reply.delay_seconds)
    return reply.line
