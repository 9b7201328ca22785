"""Settings that every gRPC service has. Each service has its own class in its ``config.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder_common.config import is_loopback
from dexorder_common.proxies import is_proxy, parse_networks, peer_address
from dexorder_common.rpc.identity import read_callers
from dexorder_common.rpc.streams import KEEP_ALIVE_SECONDS

Transport: TypeAlias = Literal["auto", "grpcio", "native"]
"""Name of a gRPC transport; ``auto`` is native where its package is installed, else grpcio."""


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
    keep_alive_seconds: float = Field(default=KEEP_ALIVE_SECONDS, ge=0.01, le=KEEP_ALIVE_SECONDS)
    """Longest time, in seconds, in which an endless stream sends nothing; less than the idle timeout of any proxy."""
    transport: Transport = "grpcio"
    """Transport of the gRPC server: native needs the package dexorder_http2, auto takes it where it is installed
    (docs/transports.md)."""
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Largest gRPC message accepted, in bytes."""
    tls_certificate: Path | None = None
    """PEM file of the server's certificate chain; with tls_key it turns TLS on."""
    tls_key: Path | None = None
    """PEM file of the server's key."""
    tls_client_ca: Path | None = None
    """PEM file of the authority that signs client certificates; turns mutual TLS on."""
    identity: Literal["none", "token", "certificate", "forwarded"] = "none"
    """Proof of identity that callers need: none, a token, a client certificate, or the name that a proxy forwards."""
    forwarded_from: str = ""
    """Networks, with commas, of proxies beyond loopback that may forward a caller's name."""
    forwarded_jwt: str = Field(default="", pattern=r"^[a-z0-9._-]*$")
    """Metadata, in small letters, in which these proxies pass on the payload of a JWT that they have checked, such as
    x-jwt-payload; empty takes none. Every path must require a JWT: else a caller may set it itself."""
    tokens: Path | None = None
    """YAML file of the callers with token hashes and roles; read again when it changes."""
    introspection: bool = True
    """Serve reflection and channelz, which need no identity."""
    allow_insecure: bool = Field(default=False, validation_alias="DEXORDER_ALLOW_INSECURE")
    """Permit listening beyond loopback without TLS or identity; for a mesh with a sidecar that provides both."""
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", validation_alias="DEXORDER_LOG_LEVEL"
    )
    """Lowest level that is logged."""
    log_format: Literal["console", "json"] = Field(default="console", validation_alias="DEXORDER_LOG_FORMAT")
    """Text for people or JSON for machines."""

    @field_validator("tokens")
    @classmethod
    def _readable(cls, tokens: Path | None) -> Path | None:
        try:
            if tokens:
                read_callers(tokens)
        except OSError as error:
            raise ValueError(f"can't be read: {error.strerror}") from None
        return tokens

    @field_validator("forwarded_from")
    @classmethod
    def _networks(cls, networks: str) -> str:
        parse_networks(networks)
        return networks

    @model_validator(mode="after")
    def _safe_by_default(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if (self.identity == "none") != (self.tokens is None):
            raise ValueError("tokens and identity (token, certificate or forwarded) go together")
        if (self.forwarded_from or self.forwarded_jwt) and self.identity != "forwarded":
            raise ValueError("forwarded_from and forwarded_jwt need identity forwarded")
        if self.identity == "certificate" and not (self.tls_certificate and self.tls_client_ca):
            raise ValueError("identity certificate needs tls_certificate, tls_key and tls_client_ca")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate")
        exposed = [f"{a}{self.source_of(a)}" for a in self.exposed_addresses() if not is_loopback(a)]
        # With identity forwarded, only a proxy beside this process, or of the list, may call or connect.
        if exposed and not self.allow_insecure and self.identity != "forwarded":
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

    def proxies_only(self) -> Callable[[str], bool] | None:
        """Return whether an unencrypted port takes a peer with an IP address; None if it takes any.

        With identity ``forwarded`` such a port takes proxies only, like the calls: it is closed outside the mesh.
        """
        if self.identity != "forwarded" or self.allow_insecure:
            return None
        networks = parse_networks(self.forwarded_from)
        return lambda host: is_proxy(peer_address(f"tcp:{host}:0"), networks)

    def call_addresses(self) -> list[str]:
        """Return the addresses that take calls of the service."""
        return [self.listen]

    def exposed_addresses(self) -> list[str]:
        """Return the unencrypted addresses of this service; a service with more sockets adds theirs."""
        return [] if self.tls_certificate else self.call_addresses()

    def source_of(self, address: str) -> str:
        """Return the source of an address for error messages, if it is not the environment."""
        return ""
