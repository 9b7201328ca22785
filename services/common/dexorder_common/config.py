"""Settings of every service. Each service has its own class in ``config.py``; nothing else reads the environment."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

S = TypeVar("S", bound=BaseSettings)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``tcp://host:port``; an IPv6 host is in brackets."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach the address."""
    if address.startswith(("unix:", "ipc:", "inproc:")):
        return True
    host = split_address(address)[0]
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class ServiceSettings(BaseSettings):
    """Settings of every gRPC service: ``DEXORDER_<PART>_<NAME>``, unless an alias is given."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    listen: str = "127.0.0.1:0"
    """host:port of the gRPC server; port 0 takes a free port."""
    metrics_listen: str = ""
    """host:port of the Prometheus endpoint; empty disables it."""
    drain_seconds: float = Field(default=10.0, ge=0)
    """Longest time, in seconds, that running calls get after SIGTERM."""
    lame_duck_seconds: float = Field(default=0.0, ge=0)
    """Time, in seconds, after SIGTERM in which health says NOT_SERVING and every call is still served."""
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Largest gRPC message accepted, in bytes."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate chain; with tls_key it turns TLS on."""
    tls_key: Path | None = None
    """PEM file of the server's key."""
    tls_client_ca: Path | None = None
    """PEM file of the authority that signs client certificates; turns mutual TLS on."""
    identity: Literal["none", "token", "certificate"] = "none"
    """Proof of identity that callers need: none, a token, or a client certificate."""
    tokens: Path | None = None
    """YAML file of the callers with token hashes and roles; read again when it changes."""
    introspection: bool = True
    """Serve reflection and channelz, which need no identity."""
    allow_insecure: bool = Field(default=False, validation_alias="DEXORDER_ALLOW_INSECURE")
    """Permit listening beyond loopback without TLS or identity; for a mesh whose sidecar provides both."""
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", validation_alias="DEXORDER_LOG_LEVEL"
    )
    """Lowest level that is logged."""
    log_format: Literal["console", "json"] = Field(default="console", validation_alias="DEXORDER_LOG_FORMAT")
    """Text for people or JSON for machines."""

    @field_validator("tokens")
    @classmethod
    def _readable(cls, tokens: Path | None) -> Path | None:
        from dexorder_common.rpc.identity import read_callers  # deferred: clients have no tokens file

        try:
            if tokens:
                read_callers(tokens)
        except OSError as error:
            raise ValueError(f"can't be read: {error.strerror}") from None
        return tokens

    @model_validator(mode="after")
    def _safe_by_default(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if (self.identity == "none") != (self.tokens is None):
            raise ValueError("tokens and identity (token or certificate) go together")
        if self.identity == "certificate" and not (self.tls_certificate and self.tls_client_ca):
            raise ValueError("identity certificate needs tls_certificate, tls_key and tls_client_ca")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate")
        exposed = [f"{a}{self.source_of(a)}" for a in self.exposed_addresses() if not is_loopback(a)]
        if exposed and not self.allow_insecure:
            raise ValueError(
                f"{', '.join(exposed)} is reachable from outside without TLS; set TLS or DEXORDER_ALLOW_INSECURE=1"
            )
        open_to_all = [f"{a}{self.source_of(a)}" for a in self.call_addresses() if not is_loopback(a)]
        if open_to_all and self.identity == "none" and not self.tls_client_ca and not self.allow_insecure:
            raise ValueError(
                f"{', '.join(open_to_all)} accepts calls from anyone; "
                "set identity or tls_client_ca, or DEXORDER_ALLOW_INSECURE=1"
            )
        return self

    def call_addresses(self) -> list[str]:
        """Return the addresses that take calls of the service."""
        return [self.listen]

    def exposed_addresses(self) -> list[str]:
        """Return the unencrypted addresses of this service; a service with further sockets adds theirs."""
        return [] if self.tls_certificate else self.call_addresses()

    def source_of(self, address: str) -> str:
        """Return the source of an address for error messages, if it is not the environment."""
        return ""


def file_uri(path: Path) -> str:
    """Return the ``file://`` URI of an absolute path as pyiceberg and Iceberg read it.

    Neither decodes ``%20``: with ``Path.as_uri`` tables of a folder ``a b`` would be in a folder ``a%20b``.
    """
    return f"file://{path}"


def state_folder() -> Path:
    """Return ``dexorder`` below ``XDG_STATE_HOME`` or ``~/.local/state``, this user's own folder; it may not exist."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "dexorder")


class BadSettings(ValueError):
    """Invalid settings; one line for each problem, with its variable, or its file and the place in it."""


def read_settings(settings: type[S], **overrides: Any) -> S:
    """Read settings from the environment.

    Raises:
        BadSettings: A value is invalid; the message names the variable and, unless the class hides it, the value.
    """
    try:
        return settings(**overrides)
    except ValidationError as error:
        prefix = settings.model_config.get("env_prefix", "")
        hidden = settings.model_config.get("hide_input_in_errors", False)
        lines = []
        for problem in error.errors():
            cause = problem.get("ctx", {}).get("error")
            if isinstance(cause, BadSettings):  # from a file; its text has the places
                lines.append(str(cause))
                continue
            name = ".".join(str(part) for part in problem["loc"])
            variable = name if name.startswith("DEXORDER_") else f"{prefix}{name or '*'}".upper()
            got = f" (got {problem.get('input')!r})" if name and not hidden else ""
            lines.append(f"{variable}: {problem['msg']}{got}")
        raise BadSettings("bad settings\n  " + "\n  ".join(lines)) from None


def load_settings(settings: type[S], **overrides: Any) -> S:
    """Read settings as `read_settings` does; an invalid value ends the process with its message."""
    try:
        return read_settings(settings, **overrides)
    except BadSettings as error:
        raise SystemExit(str(error)) from None
