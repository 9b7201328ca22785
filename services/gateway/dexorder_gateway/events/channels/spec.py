"""Declaration of a channel: all that the gateway knows of it stands in the module of its name, as ``SPEC``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.channels.http import Http
from dexorder_gateway.events.model import Contacts, Destination, EventMessage, Result, address_of

HIDDEN = "***"
"""Stands for a secret in answers; a client that writes it keeps the secret."""
PUSH_TTL_SECONDS: Final = {Priority.INFORMATIONAL: 0, Priority.NORMAL: 3600, Priority.CRITICAL: 24 * 3600}
"""Time for which a push service keeps a message for a device that is offline."""
_ELLIPSIS = "…"


def _base_url(given: str) -> str:
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not a URL like https://host")
    return given


Seconds = Annotated[float, Field(gt=0, le=1e9)]
"""Finite, so that every time fits into a column."""
EMPTY_IS_NONE = BeforeValidator(lambda value: None if value == "" else value)
OptionalPath = Annotated[Path | None, EMPTY_IS_NONE]
BaseUrl = Annotated[str, AfterValidator(_base_url)]


class EventChannelSettings(BaseSettings):
    """Settings that several channels use. A channel's module derives its class from this one."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_EVENTS_", extra="ignore", populate_by_name=True, hide_input_in_errors=True
    )

    send_timeout_seconds: Seconds = 10.0
    """Time limit, in seconds, of one call to a provider."""
    plain_http: bool = False
    """Allow http: webhooks and subscriptions; for tests."""


S = TypeVar("S", bound=EventChannelSettings)
S_contra = TypeVar("S_contra", bound=EventChannelSettings, contravariant=True)


class ChannelAdapter(Protocol):
    """Client of a channel's provider. Its reasons and log lines, at any level, hold no token, URL, address or id."""

    def reachable(self, contacts: Contacts) -> str:
        """Return why these contacts can't be reached, empty if they can; for any thread."""

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """Call the provider once (PUSH: once for each of the user's devices). Raises only CancelledError."""


class ContactField(Protocol[S_contra]):
    """Field of the protocol's Contacts with destinations of one channel."""

    @property
    def name(self) -> str:
        """Return its name in the protocol."""

    def show(self, destinations: Sequence[Destination]) -> Any:
        """Return the field's value for users and staff, with `HIDDEN` in place of secrets."""

    def read(self, given: Any, before: Sequence[Destination], settings: S_contra) -> tuple[Destination, ...]:
        """Return the destinations in a value of the field; ``before`` has the secrets that `HIDDEN` stands for.

        Raises:
            InvalidRequest: The value is not accepted. The error names the field and shows no secret.
        """


@dataclass(frozen=True, slots=True)
class TextField(Generic[S_contra]):
    """Field with at most one destination, a text.

    Attributes:
        check: Gets the field's name, the text and the settings; raises InvalidRequest.
        secret: Whoever knows the text can write to the user, so it is never shown.
    """

    name: str
    check: Callable[[str, str, S_contra], None]
    secret: bool = False

    def show(self, destinations: Sequence[Destination]) -> str:
        """See `ContactField`."""
        text = next(map(address_of, destinations), "")
        return HIDDEN if text and self.secret else text

    def read(self, given: str, before: Sequence[Destination], settings: S_contra) -> tuple[Destination, ...]:
        """See `ContactField`."""
        text = next(map(address_of, before), "") if self.secret and given == HIDDEN else given
        if not text:
            return ()
        self.check(self.name, text, settings)
        return (text,)


def matches(pattern: str, otherwise: str) -> Callable[[str, str, EventChannelSettings], None]:
    """Return a check of a `TextField` by a regular expression; the error is the name with ``otherwise``."""
    expression = re.compile(pattern)

    def check(name: str, text: str, settings: EventChannelSettings) -> None:
        if not expression.fullmatch(text):
            raise InvalidRequest(f"{name} {otherwise}")

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec(Generic[S]):
    """All rules of one channel.

    Attributes:
        word: Name for people.
        place: Position in the default order of channels, ascending.
        settings: Its environment variables.
        contacts: Fields with its destinations.
        own_limit: Each destination is a provider with its own pauses; otherwise all users share one.
        setup: Settings and accounts that an operator needs, for the documentation.
        needs: Conditions on the user's side, for the documentation.
        open: Returns the adapter, or None if the settings turn the channel off; raises BadSettings. It imports the
            libraries that no other channel needs. The stack closes the adapter's connections.
    """

    channel: Channel
    word: str
    place: int
    settings: type[S]
    contacts: tuple[ContactField[S], ...]
    open: Callable[[S, Http, AsyncExitStack], ChannelAdapter | None]
    setup: str
    needs: str = ""
    own_limit: bool = False


def utf16_units(character: str) -> int:
    """Return the size that chats count: two beyond the basic multilingual plane."""
    return 2 if character > "\uffff" else 1


def utf8_bytes(character: str) -> int:
    """Return the size that push services count."""
    return len(character.encode())


def truncate(text: str, limit: int, size: Callable[[str], int] = utf16_units) -> str:
    """Shorten a text until the sizes of its characters add up to at most ``limit``; an ellipsis marks the cut."""
    room = limit - size(_ELLIPSIS)
    taken = fits = 0
    for end, character in enumerate(text, 1):
        taken += size(character)
        if taken <= room:
            fits = end
        if taken > limit:
            return text[:fits].rstrip() + _ELLIPSIS
    return text
