"""Which containers there are and for which users they may speak.

containers:
  - container: alice-bot                  # its name, part of the key of its events
    curve: "Yne@$w-vo<fVvi]a<NY6T1ed:..."  # its public key, or a list while two are valid
    client_id: desk-1                     # its name as a caller of gRPC; optional
    users: [alice]                        # or "*" for all
    quota: {hard_events_per_second: 50}   # instead of the gateway's own limits; optional
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from zmq.utils.z85 import Z85CHARS

from services.common.model.errors import NotAllowed
from services.common.storage.watched_file import WatchedFile, read_yaml


class ContainerQuota(BaseModel):
    """A container's own limits; None takes the gateway's (``EventsSettings`` says what they mean)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    soft_events_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    hard_events_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    queued_events: int | None = Field(default=None, ge=1)


NO_QUOTA = ContainerQuota()


@dataclass(frozen=True, slots=True)
class Container:
    """Whoever sends events.

    Attributes:
        users: For whom it may speak; None for everybody.
    """

    name: str
    users: frozenset[str] | None
    quota: ContainerQuota = NO_QUOTA

    def speaks_for(self, user_id: str) -> bool:
        """Whether it may send events to this user."""
        return self.users is None or user_id in self.users


LOCAL = Container("local", None)
"""Everyone, where nobody has to prove who they are."""
STRANGER = Container("", frozenset())
"""Somebody whose key is no container's any more."""


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _z85(key: str) -> str:
    if len(key) != 40 or not set(key.encode()) <= set(Z85CHARS):
        raise ValueError("is no public key: 40 characters of Z85 are, as in the .key file")
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
    """Every container that is known; never changed once made, so any thread may ask."""

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
        """Every public key."""
        return frozenset(self._by_key)

    def by_key(self, key: str) -> Container | None:
        """Whose public key it is."""
        return self._by_key.get(key)

    def local(self) -> Container:
        """Who sends without proof, where none is asked for: the entry ``local``, else all users' `LOCAL`."""
        return self._by_name.get(LOCAL.name, LOCAL)

    def publisher(self, client_id: str | None) -> Container:
        """Which container a caller of gRPC is; None where no identity is asked for.

        Raises:
            NotAllowed: No entry names this caller.
        """
        if client_id is None:
            return self.local()
        if (found := self._by_client.get(client_id)) is None:
            raise NotAllowed(f"client_id {client_id!r} is no container's")
        return found


def _put(table: dict[str, Container], name: str, container: Container, otherwise: str) -> None:
    if table.setdefault(name, container) is not container:
        raise ValueError(otherwise)


def read_containers(path: Path) -> Containers:
    """Read a containers file.

    Raises:
        OSError: It can't be read.
        ValueError: It is none; says where, and shows no value, which might be a secret key put there by mistake.
    """
    return Containers(read_yaml(path, _File).containers)


class ContainersFile:
    """A containers file that may change while we run; a bad change is logged and the state before it stays in force.

    Without a file there is only ``Containers().local()``. May be asked from any thread.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = WatchedFile(path, "containers", read_containers) if path else None
        self._nobody = Containers()

    def current(self) -> Containers:
        """Every container that is known now."""
        return self._file.current() if self._file else self._nobody

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a container with this public key may connect; asked at each CURVE handshake."""
        return self.current().by_key(key.decode()) is not None
