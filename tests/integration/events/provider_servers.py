"""Fake providers for many users: each user's calls are answered as planned for that user."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from aiosmtpd.smtp import SMTP, Envelope, Session

from dexorder_gateway.events.model import WebPushSubscription
from tests.fakes.events import chat, fcm
from tests.fakes.events.providers import Providers
from tests.fakes.events.scripted import Call, Reply, ScriptedServer
from tests.fakes.events.smtp import MailServer
from tests.integration.events.container import until

START_SECONDS = 30.0
MAIL_DOMAIN = "users.example"
MAIL_LINES = {451: "451 4.3.0 try again later", 550: "550 5.1.1 no such user here"}


@dataclass(frozen=True)
class Answer:
    """Answer of a provider to one call: 200 and 201 accept it; a call that hangs is accepted, too."""

    status: int = 200
    retry_after: int = 0
    delay_seconds: float = 0.0
    hang: bool = False


HANG = Answer(hang=True)


@dataclass
class Taken:
    """One call. ``reference`` identifies duplicates, where the provider can."""

    provider: str
    at_s: float
    text: str = ""
    reference: str = ""


class Provider:
    """Calls by user, and the planned answers. ``usual`` answers when no plan is left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.usual = Answer()
        self._calls: defaultdict[str, list[Taken]] = defaultdict(list)
        self._plans: defaultdict[str, deque[Answer]] = defaultdict(deque)

    def plan(self, user: str, *answers: int | Answer) -> None:
        """Plan these answers to the user's next calls; later ones are accepted."""
        self._plans[user].extend(Answer(each) if isinstance(each, int) else each for each in answers)

    def calls(self, user: str) -> list[Taken]:
        """Return all calls for the user, in order."""
        return list(self._calls.get(user, ()))

    async def called(self, user: str, count: int) -> list[Taken]:
        """Wait for a number of calls for the user."""
        await until(lambda: len(self._calls[user]) >= count)
        return self.calls(user)

    def everything(self) -> list[tuple[str, Taken]]:
        """Return all calls with their users."""
        return [(user, taken) for user, calls in list(self._calls.items()) for taken in list(calls)]

    def take(self, user: str, at_s: float) -> tuple[Taken, Answer]:
        """Record a call; return the answer to it."""
        self._calls[user].append(taken := Taken(self.name, at_s))
        plan = self._plans[user]
        return taken, plan.popleft() if plan else self.usual


class ProviderServers:
    """All providers in their own thread; a context manager."""

    def __init__(self) -> None:
        self.telegram = Provider("telegram")
        self.email = Provider("email")
        self.push = Provider("push")
        self.discord = Provider("discord")
        self.slack = Provider("slack")
        self.phones = Provider("phones")
        self.all = (self.telegram, self.email, self.push, self.phones, self.discord, self.slack)
        self._providers = Providers()
        self._numbers = itertools.count(1_000_001)
        self._chats: dict[str, int] = {}
        self._users: dict[int, str] = {}
        self._browsers: dict[str, WebPushSubscription] = {}
        self._owners: dict[str, str] = {}
        self._holders: dict[str, str] = {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_SECONDS)

    def settings(self, folder: Path) -> dict[str, str]:
        """Return the EventsSettings that name all of them."""
        given = self._providers.environment(folder)
        return {name.removeprefix("DEXORDER_EVENTS_").lower(): value for name, value in given.items()}

    def contacts(self, user: str) -> dict[str, Any]:
        """Return a contact on every channel, without phones: fields of the proto's Contacts."""
        browser = self._browser(user)
        return {
            "telegram_chat_id": str(self._chat(user)),
            "email": f"{user}@{MAIL_DOMAIN}",
            "web_push": [{"endpoint": browser.endpoint, "p256dh": browser.p256dh, "auth": browser.auth}],
            "discord_webhook_url": self._providers.discord.webhook(user),
            "slack_webhook_url": self._providers.slack.webhook(user),
        }

    def secrets(self, user: str) -> set[str]:
        """Return the secrets of a user that no log or error may show; without a user, the gateway's."""
        if not user:
            return {self._providers.bot.token, MAIL_PASSWORD, *self._providers.fcm.secrets()}
        given = self.contacts(user)
        browser = given["web_push"][0]
        webhooks = {given["discord_webhook_url"], given["slack_webhook_url"]}
        phones = {phone for phone, holder in self._holders.items() if holder == user}
        return {given["telegram_chat_id"], given["email"], browser["endpoint"], browser["auth"], *webhooks, *phones}

    def phone(self, user: str) -> str:
        """Add a phone of a user; return its token, for their contacts."""
        self._holders[token := self._providers.fcm.register()] = user
        return token

    def uninstall(self, phone: str) -> None:
        """Uninstall the app from a phone: FCM no longer knows its token."""
        self._providers.fcm.phones.remove(phone)

    def order(self, user: str) -> list[str]:
        """Return the names of the providers called for the user, in order."""
        calls = [call for provider in self.all for call in provider.calls(user)]
        return [call.provider for call in sorted(calls, key=lambda call: call.at_s)]

    def _chat(self, user: str) -> int:
        if user not in self._chats:
            self._chats[user] = number = next(self._numbers)
            self._users[number] = user
        return self._chats[user]

    def _browser(self, user: str) -> WebPushSubscription:
        if user not in self._browsers:
            self._browsers[user] = made = self._providers.push.subscribe()
            self._owners[made.endpoint.removeprefix(self._providers.push.url)] = user
        return self._browsers[user]

    async def _serve(self) -> None:
        given = self._providers
        given.mail = _Mail(self.email)
        _ask(given.bot, self._say_telegram)
        _ask(given.push, self._say_push)
        _ask(given.fcm, self._say_phone)
        _ask(given.discord, self._say_webhook(self.discord))
        _ask(given.slack, self._say_webhook(self.slack))
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with given:
            self._ready.set()
            await self._stopping.wait()

    def _say_telegram(self, call: Call, usual: Callable[[Call], Reply]) -> Reply:
        asked = call.json
        taken, answer = self.telegram.take(self._users.get(int(asked["chat_id"]), ""), call.at)
        taken.text = asked["text"]
        if answer.status == 429:
            return chat.too_many(answer.retry_after)
        if answer.status == 403:
            return chat.BLOCKED
        return _reply(call, answer, usual, chat.failed(answer.status, "as planned"))

    def _say_push(self, call: Call, usual: Callable[[Call], Reply]) -> Reply:
        taken, answer = self.push.take(self._owners.get(call.path, ""), call.at)
        taken.reference = call.headers.get("Topic", "")
        before = len(self._providers.push.shown)
        reply = _reply(call, answer, usual, _plain(answer))
        if len(self._providers.push.shown) > before:
            taken.text = json.dumps(self._providers.push.shown[-1].data)
        return reply

    def _say_phone(self, call: Call, usual: Callable[[Call], Reply]) -> Reply:
        message = call.json["message"]
        taken, answer = self.phones.take(self._holders.get(message["token"], ""), call.at)
        taken.text = json.dumps(message["notification"])
        taken.reference = message["android"]["collapse_key"]
        return _reply(call, answer, usual, fcm.fcm_error(answer.status, "PLANNED", headers=_plain(answer).headers))

    def _say_webhook(self, provider: Provider) -> Callable[[Call, Callable[[Call], Reply]], Reply]:
        def say(call: Call, usual: Callable[[Call], Reply]) -> Reply:
            taken, answer = provider.take(call.path.rpartition("/")[2], call.at)
            taken.text = call.body.decode()
            return _reply(call, answer, usual, _plain(answer))

        return say


def _plain(answer: Answer) -> Reply:
    return Reply(answer.status, "", {"Retry-After": str(answer.retry_after)} if answer.retry_after else {})


def _reply(call: Call, answer: Answer, usual: Callable[[Call], Reply], refusal: Reply) -> Reply:
    if answer.status in (200, 201):
        return replace(usual(call), delay_seconds=answer.delay_seconds, hang=answer.hang)
    return refusal


def _ask(server: ScriptedServer, say: Callable[[Call, Callable[[Call], Reply]], Reply]) -> None:
    """Let ``say`` decide a server's answer; it gets the call and the server's own handler."""
    usual = server.answer
    server.answer = lambda call: say(call, usual)  # type: ignore[method-assign]


MAIL_PASSWORD = "a-mail-password-of-tests"


class _Mail(MailServer):
    """Apply a plan for a recipient's mails: to RCPT, or for a hang to the mail itself, once it is accepted."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(login=("gateway", MAIL_PASSWORD))
        self._provider = provider
        self._open: dict[int, tuple[Taken, Answer]] = {}

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        taken, answer = self._provider.take(address.partition("@")[0], time.monotonic())
        if answer.status in MAIL_LINES:
            return MAIL_LINES[answer.status]
        self._open[id(envelope)] = taken, answer
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 ok"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        taken, answer = self._open.pop(id(envelope))
        line = await super().handle_DATA(server, session, envelope)
        message = self.mails[-1].message
        body = message.get_body(("plain",))
        taken.text = f"{message['Subject']}\n{body.get_content() if body else ''}"
        taken.reference = str(message["Message-ID"])
        if answer.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(answer.delay_seconds)
        return line
