"""All fake providers, and the settings with which a gateway uses them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fakes.events.chat import BotApi, discord, matrix, slack
from tests.fakes.events.fcm import Fcm
from tests.fakes.events.push_service import PushService
from tests.fakes.events.smtp import MailServer


class Providers:
    """One server of each kind while the context is open."""

    def __init__(self) -> None:
        self.bot = BotApi()
        self.mail = MailServer()
        self.push = PushService()
        self.fcm = Fcm()
        self.discord = discord()
        self.slack = slack()
        self.matrix = matrix()
        self.web = (self.bot, self.push, self.fcm, self.discord, self.slack, self.matrix)
        self._open = AsyncExitStack()

    def environment(self, folder: Path) -> dict[str, str]:
        """``DEXORDER_EVENTS_*`` of a gateway that uses all of them; their keys are written into the folder."""
        settings = {
            "telegram_url": self.bot.url,
            "telegram_token": self.bot.token,
            "smtp_url": self.mail.url,
            "smtp_from": "gateway@dexorder.test",
            "vapid_key": str(self.push.vapid_key(folder / "vapid.pem")),
            "push_hosts": self.push.netloc,
            "fcm_credentials": str(self.fcm.credentials(folder / "fcm.json")),
            "fcm_url": self.fcm.url,
            "discord_hosts": self.discord.netloc,
            "slack_hosts": self.slack.netloc,
            "matrix_hosts": self.matrix.netloc,
            "plain_http": "true",
        }
        return {f"DEXORDER_EVENTS_{name.upper()}": value for name, value in settings.items()}

    async def __aenter__(self) -> Self:
        for server in (self.mail, *self.web):
            await self._open.enter_async_context(server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()
