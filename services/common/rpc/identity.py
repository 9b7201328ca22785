"""Who calls: a token or a client certificate names the caller, the callers file says what that name may do.

    callers:
      - client_id: desk-1
        sha256: 2cf24dba5fb0a30e...        # hash of its token; a list while two are valid; none: certificate only
        role: client                       # client, ingestor, pipeline or admin
        quota: {unfinished_requests: 20}   # instead of the service's own limits

``python -m services.common.rpc.identity token CLIENT_ID`` makes a token and its entry. Only hashes are kept anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from services.common.model.errors import NotAllowed, Unauthenticated
from services.common.storage.watched_file import WatchedFile, read_yaml

AUTHORIZATION = "authorization"
"""Metadata key of a token; its value is ``Bearer TOKEN``."""
OPEN_SERVICES = frozenset(
    {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "grpc.channelz.v1.Channelz",
    }
)
"""What anyone may call who reaches the port; a setting closes the last two."""


class Role(StrEnum):
    """What a caller is; each service says which roles may call it."""

    CLIENT = "client"
    INGESTOR = "ingestor"
    PIPELINE = "pipeline"
    ADMIN = "admin"


class Quota(BaseModel):
    """A caller's own limits; None takes the service's. docs/security.md says what each counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    unfinished_requests: int | None = Field(default=None, ge=0)
    submissions_per_minute: int | None = Field(default=None, ge=1)
    unfinished_periods: int | None = Field(default=None, ge=0)
    open_streams: int | None = Field(default=None, ge=0)


NO_QUOTA = Quota()
STAFF = (Role.INGESTOR, Role.PIPELINE, Role.ADMIN)
"""Who may call a service that names no roles: clients have the relay to ask."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever makes a call, once that is proven."""

    client_id: str
    role: Role
    quota: Quota = NO_QUOTA


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller of the RPC that runs in this task; None where no identity is asked for."""
    return _caller.get()


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    client_id: str = Field(min_length=1, max_length=256)
    sha256: Annotated[
        tuple[Annotated[str, StringConstraints(to_lower=True, pattern=r"^[0-9a-fA-F]{64}$")], ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = ()
    role: Role = Role.CLIENT
    quota: Quota = NO_QUOTA


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    callers: tuple[_Entry, ...]


class Callers:
    """Everyone who is known."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._by_name: dict[str, Caller] = {}
        self._by_hash: dict[str, Caller] = {}
        for entry in entries:
            caller = Caller(entry.client_id, entry.role, entry.quota)
            if caller.client_id in self._by_name:
                raise ValueError(f"client_id {caller.client_id!r} has two entries")
            self._by_name[caller.client_id] = caller
            for digest in entry.sha256:
                if digest in self._by_hash:
                    raise ValueError(f"a token of client_id {caller.client_id!r} has two entries")
                self._by_hash[digest] = caller

    def __len__(self) -> int:
        return len(self._by_name)

    def by_token(self, token: str) -> Caller | None:
        """Whose token it is. Takes as long for every token, known or not."""
        digest, found = token_hash(token), None
        for known, caller in self._by_hash.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def by_name(self, name: str) -> Caller | None:
        """Who has this client_id."""
        return self._by_name.get(name)


def token_hash(token: str) -> str:
    """What the callers file holds of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_callers(path: Path) -> Callers:
    """Read a callers file.

    Raises:
        OSError: It can't be read.
        ValueError: It is none; says where, and shows no value, which might be a token put there by mistake.
    """
    return Callers(read_yaml(path, _File).callers)


class CallersFile(WatchedFile[Callers]):
    """A callers file that may change while we run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "callers", read_callers)

    def callers(self) -> Callers:
        """Everyone who is known now."""
        return self.current()


class Gate:
    """Lets calls in: finds out who calls, and whether that role may call the service."""

    def __init__(
        self,
        mode: Literal["token", "certificate"],
        file: CallersFile,
        roles: Mapping[str, Collection[Role]],
        own_identity: Collection[str] = (),
    ) -> None:
        """Made by ``lifecycle.grpc_server``.

        Args:
            roles: Full service names with the roles that may call them; the others are for STAFF.
            own_identity: Full names of services that check their callers themselves.
        """
        self._mode = mode
        self._file = file
        self._roles = roles
        self._own_identity = frozenset(own_identity)

    def admit(self, service: str, context: Any) -> None:
        """Let one call in and make its caller the task's ``current_caller``.

        A service with ``own_identity`` gets every call, with a caller if the callers file knows it.

        Raises:
            Unauthenticated: It is not proven who calls, or nobody knows them.
            NotAllowed: Their role may not call this service.
        """
        if service in OPEN_SERVICES or trusted_socket(context):
            return
        if service in self._own_identity:
            with suppress(Unauthenticated):
                _caller.set(self._find(context))
            return
        caller = self._find(context)
        allowed = self._roles.get(service, STAFF)
        if caller.role not in allowed:
            raise NotAllowed(
                f"client_id {caller.client_id!r} has the role {caller.role}; "
                f"{service} takes {' or '.join(sorted(allowed))}"
            )
        _caller.set(caller)

    def _find(self, context: Any) -> Caller:
        callers = self._file.callers()
        return _by_token(callers, context) if self._mode == "token" else _by_certificate(callers, context)


def trusted_socket(context: Any) -> bool:
    """Whether the call came over a unix socket, whose file's permissions let it in."""
    return bool(context.peer().startswith("unix:"))


def bearer_token(context: Any) -> str:
    """The token that a call brings as metadata.

    Raises:
        Unauthenticated: There is none, more than one, or it is not of that form.
    """
    values = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
    if len(values) != 1:
        raise Unauthenticated(f"{len(values)} tokens; send one, as metadata '{AUTHORIZATION}: Bearer TOKEN'")
    scheme, _, token = str(values[0]).partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(f"the metadata '{AUTHORIZATION}' is not of the form 'Bearer TOKEN'")
    return token.strip()


def _by_token(callers: Callers, context: Any) -> Caller:
    if (caller := callers.by_token(bearer_token(context))) is None:
        raise Unauthenticated("the token is not known")
    return caller


def _by_certificate(callers: Callers, context: Any) -> Caller:
    name = certificate_name(context.auth_context())
    if (caller := callers.by_name(name)) is None:
        raise Unauthenticated(f"the certificate's name {name[:64]!r} is not known")
    return caller


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The common name of a verified client certificate; its only alternative name where it has no common name.

    Raises:
        Unauthenticated: There is no certificate, or it has no such name.
    """
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        names = [name.decode(errors="replace") for name in auth_context.get(key, ()) if name]
        if len(names) == 1:
            return names[0]
        if names:
            raise Unauthenticated(f"the client certificate has {len(names)} names ({key})")
    raise Unauthenticated("no client certificate with a name")


def main(arguments: list[str] | None = None) -> None:
    """Print a fresh token, once, and the entry for the callers file."""
    parser = argparse.ArgumentParser(prog="python -m services.common.rpc.identity")
    command = parser.add_subparsers(required=True).add_parser("token", help="make a token and its entry")
    command.add_argument("client_id")
    command.add_argument("--role", choices=[str(role) for role in Role], default=str(Role.CLIENT))
    given = parser.parse_args(arguments)
    token = secrets.token_urlsafe(32)
    entry = {"client_id": given.client_id, "sha256": token_hash(token), "role": given.role}
    print(f"DEXORDER_TOKEN={token}\n\n# add to the callers file; the token itself is stored nowhere")
    print(yaml.safe_dump([entry], sort_keys=False), end="")


if __name__ == "__main__":
    main()
