"""Identity of callers: a token, client certificate or proxy names the caller, the callers file gives role and quotas.

    callers:
      - client_id: desk-1
        sha256: 2cf24dba5fb0a30e...        # hash of its token; a list during rotation; absent: certificate only
        uri: spiffe://cluster.local/ns/quant/sa/desk   # its name in a mesh; or a list
        jwt: https://issuer.example/desk   # ISSUER/SUBJECT of a JWT that the mesh has checked; or a list
        role: client                       # client, ingestor, pipeline or admin
        quota: {unfinished_requests: 20}   # overrides the service's limits

``python -m dexorder_common.rpc.identity token CLIENT_ID`` creates a token and its entry. Only its hash is
stored.
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
from pydantic import BeforeValidator, Field, StringConstraints

from dexorder_common.model.errors import AUTHORIZATION, OWN_AUTHORIZATION, NotAllowed, Unauthenticated
from dexorder_common.proxies import (
    FORWARDED_CERTIFICATE,
    Network,
    forwarded_jwt,
    forwarded_uri,
    is_proxy,
    peer_address,
)
from dexorder_common.storage.watched_file import FileModel, WatchedFile, read_yaml

OPEN_SERVICES = frozenset(
    {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "grpc.channelz.v1.Channelz",
    }
)
"""Services that need no identity; a setting turns the last two off."""
Mode = Literal["token", "certificate", "forwarded"]
"""Proof of identity."""


class Role(StrEnum):
    """Role of a caller; each service lists the roles that may call it."""

    CLIENT = "client"
    INGESTOR = "ingestor"
    PIPELINE = "pipeline"
    ADMIN = "admin"


class Quota(FileModel):
    """Limits of one caller; None takes the service's limit. docs/security.md defines each."""

    unfinished_requests: int | None = Field(default=None, ge=0)
    submissions_per_minute: int | None = Field(default=None, ge=1)
    unfinished_periods: int | None = Field(default=None, ge=0)
    open_streams: int | None = Field(default=None, ge=0)
    subscriptions: int | None = Field(default=None, ge=0)
    triggers: int | None = Field(default=None, ge=0)
    trigger_bytes: int | None = Field(default=None, ge=0)
    periods_per_day: int | None = Field(default=None, ge=1)
    refreshed_periods_per_day: int | None = Field(default=None, ge=1)
    udfs: int | None = Field(default=None, ge=0)
    receipts: int | None = Field(default=None, ge=0)


NO_QUOTA = Quota()
SERVER_INFO = "dexorder.server.v1.ServerInfoService"
"""Service that every known caller may call, in any role."""
STAFF = (Role.INGESTOR, Role.PIPELINE, Role.ADMIN)
"""Roles that may call a service that lists none; clients call the relay."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Authenticated caller.

    Attributes:
        users: Users that its triggers and UDFs may send to; one is ``*`` for all.
        topics: Kafka topics to which its UDFs may write; one is ``*`` for all.
    """

    client_id: str
    role: Role
    quota: Quota = NO_QUOTA
    users: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Return the caller of the RPC that runs in this task; None if the server requires no identity."""
    return _caller.get()


def current_client() -> str:
    """Return the client_id of `current_caller`; empty without one."""
    caller = _caller.get()
    return caller.client_id if caller else ""


_Names = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=256)], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]


class _Entry(FileModel):
    client_id: str = Field(min_length=1, max_length=256)
    sha256: Annotated[
        tuple[Annotated[str, StringConstraints(to_lower=True, pattern=r"^[0-9a-fA-F]{64}$")], ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = ()
    uri: _Names = ()
    jwt: _Names = ()
    role: Role = Role.CLIENT
    quota: Quota = NO_QUOTA
    users: _Names = ()
    topics: _Names = ()


class _File(FileModel):
    callers: tuple[_Entry, ...]


class Callers:
    """Callers of the file, by token and by name."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._by_name: dict[str, Caller] = {}
        self._by_hash: dict[str, Caller] = {}
        self._by_uri: dict[str, Caller] = {}
        self._by_jwt: dict[str, Caller] = {}
        for entry in entries:
            users, topics = frozenset(entry.users), frozenset(entry.topics)
            caller = Caller(entry.client_id, entry.role, entry.quota, users, topics)
            if caller.client_id in self._by_name:
                raise ValueError(f"client_id {caller.client_id!r} has two entries")
            self._by_name[caller.client_id] = caller
            for digest in entry.sha256:
                if digest in self._by_hash:
                    raise ValueError(f"a token of client_id {caller.client_id!r} has two entries")
                self._by_hash[digest] = caller
            for key, names, known in (("uri", entry.uri, self._by_uri), ("jwt", entry.jwt, self._by_jwt)):
                for name in names:
                    if name in known:
                        raise ValueError(f"{key} {name!r} of client_id {caller.client_id!r} has two entries")
                    known[name] = caller

    def __len__(self) -> int:
        return len(self._by_name)

    def by_token(self, token: str) -> Caller | None:
        """Return the owner of a token, in the same time for known and unknown tokens."""
        digest, found = token_hash(token), None
        for known, caller in self._by_hash.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def by_uri(self, uri: str) -> Caller | None:
        """Return the caller that a mesh calls so: by the ``uri`` of its entry, or by a client_id that is the URI."""
        return self._by_uri.get(uri) or self._by_name.get(uri)

    def by_jwt(self, principal: str) -> Caller | None:
        """Return the caller of a JWT, by its ``ISSUER/SUBJECT``; never by a client_id or a URI."""
        return self._by_jwt.get(principal)

    def by_name(self, name: str) -> Caller | None:
        """Return the caller with this client_id."""
        return self._by_name.get(name)


def token_hash(token: str) -> str:
    """Return the hash of a token as the callers file stores it."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_callers(path: Path) -> Callers:
    """Read a callers file.

    Raises:
        OSError: It can't be read.
        ValueError: It is invalid; the message says where and shows no value, which might be a misplaced token.
    """
    return Callers(read_yaml(path, _File).callers)


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission of calls: identifies the caller and checks that its role may call the service.

    ``lifecycle.grpc_server`` creates it; ``roles`` and ``own_identity`` are its arguments of the same names.
    """

    mode: Mode
    file: WatchedFile[Callers]
    roles: Mapping[str, Collection[Role]]
    own_identity: Collection[str]
    proxies: Collection[Network] = ()
    """Networks of the proxies that may name a caller; loopback may always."""
    jwt_metadata: str = ""
    """Metadata in which a proxy passes on the payload of a JWT that it has checked; empty takes none."""

    def admit(self, service: str, context: Any) -> None:
        """Admit one call and make its caller the task's ``current_caller``.

        A service in ``own_identity`` receives every call, with a caller if the callers file knows it.

        Raises:
            Unauthenticated: The call lacks a valid proof of identity, or the caller is unknown.
            NotAllowed: The caller's role may not call this service.
        """
        if service in OPEN_SERVICES or trusted_socket(context):
            return
        if service in self.own_identity:
            with suppress(Unauthenticated):
                _caller.set(self._find(context))
            return
        caller = self._find(context)
        allowed = tuple(Role) if service == SERVER_INFO else self.roles.get(service, STAFF)
        if caller.role not in allowed:
            raise NotAllowed(
                f"client_id {caller.client_id!r} has the role {caller.role}; "
                f"{service} takes {' or '.join(sorted(allowed))}"
            )
        _caller.set(caller)

    def _find(self, context: Any) -> Caller:
        callers = self.file.current()
        if self.mode == "token":
            caller, unknown = callers.by_token(bearer_token(context)), "the token"
        elif self.mode == "forwarded":
            caller, unknown = self._forwarded(callers, context)
        else:
            name = certificate_name(context.auth_context())
            caller, unknown = callers.by_name(name), f"the certificate's name {name[:64]!r}"
        if caller is None:
            raise Unauthenticated(f"{unknown} is not known")
        return caller

    def _forwarded(self, callers: Callers, context: Any) -> tuple[Caller | None, str]:
        """Return the caller that a proxy names, and that name; a JWT, if present, precedes the certificate."""
        peer = peer_address(context.peer())
        if not is_proxy(peer, self.proxies):
            raise Unauthenticated(
                f"the call is from {context.peer()[:64]}, which is not a proxy that may name a caller"
            )
        metadata = [(key, str(value)) for key, value in context.invocation_metadata() or ()]
        payloads = [value for key, value in metadata if self.jwt_metadata and key == self.jwt_metadata]
        if payloads:
            principal = forwarded_jwt(payloads)
            return callers.by_jwt(principal), f"the JWT of {principal[:256]!r}"
        uri = forwarded_uri(",".join(value for key, value in metadata if key == FORWARDED_CERTIFICATE))
        return callers.by_uri(uri), f"the mesh's name {uri[:256]!r}"


def trusted_socket(context: Any) -> bool:
    """Return whether the call arrived on a unix socket, which only its file's permissions protect."""
    return bool(context.peer().startswith("unix:"))


def bearer_token(context: Any) -> str:
    """Return the token in a call's metadata: from `OWN_AUTHORIZATION` if present, else the bearer token.

    Raises:
        Unauthenticated: The token is missing, malformed, or not the only one.
    """
    own = [value for key, value in context.invocation_metadata() or () if key == OWN_AUTHORIZATION]
    if len(own) > 1:
        raise Unauthenticated(f"{len(own)} tokens in the metadata {OWN_AUTHORIZATION!r}; send one")
    if own:
        return str(own[0]).strip()
    values = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
    if len(values) != 1:
        raise Unauthenticated(f"{len(values)} tokens; send one, as metadata '{AUTHORIZATION}: Bearer TOKEN'")
    scheme, _, token = str(values[0]).partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(f"the metadata '{AUTHORIZATION}' is not of the form 'Bearer TOKEN'")
    return token.strip()


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Return the common name of a verified client certificate; without one, its only alternative name.

    Raises:
        Unauthenticated: The certificate is missing, or lacks such a name.
    """
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        names = [name.decode(errors="replace") for name in auth_context.get(key, ()) if name]
        if len(names) == 1:
            return names[0]
        if names:
            raise Unauthenticated(f"the client certificate has {len(names)} names ({key})")
    raise Unauthenticated("no client certificate with a name")


def main(arguments: list[str] | None = None) -> None:
    """Print a new token, once, and its entry for the callers file."""
    parser = argparse.ArgumentParser(prog="python -m dexorder_common.rpc.identity")
    command = parser.add_subparsers(required=True).add_parser("token", help="create a token and its entry")
    command.add_argument("client_id")
    command.add_argument("--role", choices=[str(role) for role in Role], default=str(Role.CLIENT))
    given = parser.parse_args(arguments)
    token = secrets.token_urlsafe(32)
    entry = {"client_id": given.client_id, "sha256": token_hash(token), "role": given.role}
    print(f"DEXORDER_TOKEN={token}\n\n# add to the callers file; the token itself is not stored anywhere")
    print(yaml.safe_dump([entry], sort_keys=False), end="")


if __name__ == "__main__":
    main()
