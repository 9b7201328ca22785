"""Containers that may send events, their keys, the users they may send to, and their quotas.

containers:
  - container: alice-bot                  # name, part of the key of its events
    curve: "Yne@$w-vo<fVvi]a<NY6T1ed:..."  # public key, or a list while two are valid
    client_id: bot-1                      # identity as a gRPC caller; optional
    users: [alice]                        # or "*" for all
    quota: {hard_events_per_second: 50}   # overrides the gateway's limits; optional
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from zmq.utils.z85 import Z85CHARS

from dexorder_common.model.errors import NotAllowed
from dexorder_common.model.user_events import Priority
from dexorder_common.storage.watched_file import WatchedFile, read_yaml
from dexorder_gateway.events.model import Event, EventKey

if TYPE_CHECKING:
    from dexorder_gateway.events.config import EventsSettings

_SECOND_NS = 1_000_000_000


class ContainerQuota(BaseModel):
    """Limits of one container; None takes the gateway's, see ``EventsSettings``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    soft_events_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    hard_events_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    queued_events: int | None = Field(default=None, ge=1)
    critical_events: int | None = Field(default=None, ge=1)
    critical_bytes: int | None = Field(default=None, ge=1)


NO_QUOTA = ContainerQuota()


@dataclass(frozen=True, slots=True)
class Container:
    """Sender of events, and the users it may send to; None for all."""

    name: str
    users: frozenset[str] | None
    quota: ContainerQuota = NO_QUOTA

    def speaks_for(self, user_id: str) -> bool:
        """Return whether the container may send events to a user."""
        return self.users is None or user_id in self.users


LOCAL = Container("local", None)
"""Container of all senders if authentication is off."""
STRANGER = Container("", frozenset())
"""Container of a sender after its key was removed from the file."""


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _z85(key: str) -> str:
    if len(key) != 40 or not set(key.encode()) <= set(Z85CHARS):
        raise ValueError("is not a public key; use the 40 characters of Z85 in the .key file")
    return key


_Key = Annotated[str, BeforeValidator(lambda value: _z85(value) if isinstance(value, str) else value)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    container: _Name
    curve: Annotated[tuple[_Key, ...], BeforeValidator(_one_or_many)] = ()
    client_id: _Name | None = None
    users: Literal["*"] | tuple[_Name, ...]
    quota: ContainerQuota = NO_QUOTA


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    containers: tuple[_Entry, ...]


class Containers:
    """Immutable table of containers, for any thread."""

    def __init__(self, entries: Iterable[_Entry] = ()) -> None:
        self._by_name: dict[str, Container] = {}
        self._by_key: dict[str, Container] = {}
        self._by_client: dict[str, Container] = {}
        for entry in entries:
            users = None if entry.users == "*" else frozenset(entry.users)
            container = Container(entry.container, users, entry.quota)
            _put(self._by_name, entry.container, container, f"container {entry.container!r} has two entries")
            for key in entry.curve:
                _put(self._by_key, key, container, f"a key of container {entry.container!r} has two entries")
            if entry.client_id is not None:
                _put(self._by_client, entry.client_id, container, f"client_id {entry.client_id!r} has two entries")

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def keys(self) -> frozenset[str]:
        """All public keys."""
        return frozenset(self._by_key)

    def by_key(self, key: str) -> Container | None:
        """Return the container with a public key."""
        return self._by_key.get(key)

    def local(self) -> Container:
        """Return the container of unauthenticated senders: the entry ``local``, else `LOCAL` with all users."""
        return self._by_name.get(LOCAL.name, LOCAL)

    def publisher(self, client_id: str | None) -> Container:
        """Return the container of a gRPC caller; ``client_id`` is None if callers do not authenticate."""
        if client_id is None:
            return self.local()
        if (found := self._by_client.get(client_id)) is None:
            raise NotAllowed(f"client_id {client_id!r} belongs to no container")
        return found


def _put(table: dict[str, Container], name: str, container: Container, otherwise: str) -> None:
    if table.setdefault(name, container) is not container:
        raise ValueError(otherwise)


def read_containers(path: Path) -> Containers:
    """Read a containers file, with the errors of `read_yaml`."""
    return Containers(read_yaml(path, _File).containers)


class ContainersFile:
    """Containers file that is read again when it changes. After a bad change, which is logged, the last state stays.

    Without a file there is only ``Containers().local()``. For any thread.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = WatchedFile(path, "containers", read_containers) if path else None
        self._nobody = Containers()

    def current(self) -> Containers:
        """Return the present containers."""
        return self._file.current() if self._file else self._nobody

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a public key may connect; called at each CURVE handshake."""
        return self.current().by_key(key.decode()) is not None


class Verdict(Enum):
    """Decision about a new event: ``SOFT`` delays it, if it is NORMAL; ``HELD`` takes it only when it comes again."""

    WITHIN = auto()
    SOFT = auto()
    REFUSED = auto()
    HELD = auto()


class Bucket:
    """Token bucket with a burst of one second's worth, at least one."""

    __slots__ = ("_at_ns", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")  # full at the first rate
        self._at_ns = 0

    def take(self, per_second: float, now_ns: int) -> bool:
        """Take a token; return False if the bucket is empty."""
        tokens = self._tokens + (now_ns - self._at_ns) * per_second / _SECOND_NS
        burst = per_second if per_second > 1 else 1.0
        if tokens > burst:
            tokens = burst
        self._at_ns = now_ns
        self._tokens = tokens - 1 if tokens >= 1 else tokens
        return tokens >= 1


class ContainerQuotas:
    """Use of quotas by container. The limits are read each time, because their file may change."""

    def __init__(self, settings: EventsSettings) -> None:
        self._limits = settings.soft_events_per_second, settings.hard_events_per_second, settings.hard_queued_events
        self._buckets: dict[str, tuple[Bucket, Bucket]] = {}
        self._critical_limits = settings.hard_critical_events, settings.hard_critical_bytes
        self.queued: Counter[str] = Counter()  # events that are not final
        self._critical: Counter[str] = Counter()
        self._critical_bytes: Counter[str] = Counter()
        self._sizes: dict[EventKey, int] = {}

    def enter(self, event: Event) -> None:
        """Count an event that was taken, or was read from the file at start."""
        container = event.key.container
        self.queued[container] += 1
        if event.priority is Priority.CRITICAL:
            self._critical[container] += 1
            self._critical_bytes[container] += len(event.body)
            self._sizes[event.key] = len(event.body)

    def leave(self, key: EventKey) -> None:
        """Stop counting an event that is final."""
        self.queued[key.container] -= 1
        size = self._sizes.pop(key, None)
        if size is not None:
            self._critical[key.container] -= 1
            self._critical_bytes[key.container] -= size

    def take(self, container: Container, priority: Priority, now_ns: int, size: int = 0) -> Verdict:
        """Count the arrival of a new event with ``size`` bytes; `enter` counts it if it is taken.

        CRITICAL ones are never refused or delayed; those above the limit of CRITICAL ones are held.
        """
        name, own = container.name, container.quota
        soft, hard, queued = self._limits
        soft = own.soft_events_per_second or soft
        hard = own.hard_events_per_second or hard
        queued = own.queued_events or queued
        buckets = self._buckets.get(name)
        if buckets is None:
            buckets = self._buckets[name] = Bucket(), Bucket()
        within_soft, within_hard = buckets[0].take(soft, now_ns), buckets[1].take(hard, now_ns)
        if priority is Priority.CRITICAL:
            return Verdict.WITHIN if self._has_room(container, size) else Verdict.HELD
        if not within_hard or self.queued[name] >= queued:
            return Verdict.REFUSED
        return Verdict.WITHIN if within_soft else Verdict.SOFT

    def _has_room(self, container: Container, size: int) -> bool:
        events, max_bytes = self._critical_limits
        return self._critical[container.name] < (container.quota.critical_events or events) and self._critical_bytes[
            container.name
        ] + size <= (container.quota.critical_bytes or max_bytes)
