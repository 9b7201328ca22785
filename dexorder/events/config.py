"""Settings of a container's publisher: ``DEXORDER_PUBLISHER_<NAME>``."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder_common.config import is_loopback, state_folder
from dexorder_common.messaging.curve import PublicKeyFile, SecretKeyFile
from dexorder_common.messaging.handshake import CLIENT_SECONDS


class PublisherSettings(BaseSettings):
    """Settings of `Publisher`."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_PUBLISHER_", extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    outbox: Path = Field(default_factory=lambda: state_folder() / "outbox.db", validate_default=True)
    """SQLite file of events that the gateway has not settled, on a volume that outlives the container; default
    ``outbox.db`` in ``$XDG_STATE_HOME/dexorder`` or ``~/.local/state/dexorder``."""
    fast: str = "tcp://127.0.0.1:5570"
    """Address of the gateway's fast path."""
    guaranteed: str = "tcp://127.0.0.1:5571"
    """Address of the gateway's guaranteed path."""
    bind: bool = False
    """Bind both addresses, for a gateway that connects, instead of connecting."""
    heartbeat_ms: int = Field(default=500, ge=10)
    """Interval, in milliseconds, of heartbeats; a connection is closed after two intervals without an answer."""
    handshake_seconds: float = Field(default=CLIENT_SECONDS, gt=0)
    """Longest time, in seconds, of the handshake with the gateway; a proxy that detects protocols waits for 10 s."""
    curve_key: SecretKeyFile | None = None
    """The container's ``.key_secret`` file; with curve_server it turns CURVE on."""
    curve_server: PublicKeyFile | None = None
    """The gateway's ``.key`` file."""
    allow_insecure: bool = Field(default=False, validation_alias="DEXORDER_ALLOW_INSECURE")
    """Permit addresses beyond loopback without CURVE, for a service mesh that encrypts."""
    max_payload_bytes: int = Field(default=65_536, ge=1)
    """Limit of an event's payload, in bytes. The gateway has its own limit of that name."""
    max_frame_bytes: int = Field(default=262_144, ge=1024)
    """Limit of a ZMQ frame, in bytes; the gateway disconnects a container that sends a larger one."""
    max_events: int = Field(default=100_000, ge=1)
    """Limit of events in the outbox; further ones are refused."""
    window: int = Field(default=1_000, ge=1)
    """Limit of events on the guaranteed path that are not answered yet."""
    retransmit_base_seconds: float = Field(default=1.0, gt=0)
    """Time, in seconds, before an unanswered event is sent again; doubled each time."""
    retransmit_max_seconds: float = Field(default=30.0, gt=0)
    """Limit, in seconds, of that time."""
    query_seconds: float = Field(default=60.0, gt=0)
    """Interval, in seconds, of queries for the state of an event that the gateway has queued."""

    @model_validator(mode="after")
    def _safe_by_default(self) -> Self:
        if (self.curve_key is None) != (self.curve_server is None):
            raise ValueError("curve_key and curve_server must be set together")
        exposed = [address for address in (self.fast, self.guaranteed) if not is_loopback(address)]
        if exposed and not self.curve_key and not self.allow_insecure:
            raise ValueError(
                f"{', '.join(exposed)} is not a loopback address: set curve_key and curve_server, "
                "or DEXORDER_ALLOW_INSECURE=1"
            )
        if self.retransmit_max_seconds < self.retransmit_base_seconds:
            raise ValueError("retransmit_max_seconds is below retransmit_base_seconds")
        return self
