"""Settings of user events: ``DEXORDER_EVENTS_<NAME>``. User events are served if ``DEXORDER_EVENTS_DB`` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, field_validator, model_validator

from dexorder_common.config import is_loopback, split_address
from dexorder_common.messaging.curve import SecretKeyFile
from dexorder_common.messaging.handshake import SERVER_SECONDS
from dexorder_gateway.events.channels.registry import DEFAULT_ORDER, SPECS
from dexorder_gateway.events.channels.spec import EMPTY_IS_NONE, EventChannelSettings, OptionalPath, Seconds

Days = Annotated[float, Field(gt=0, le=1e4)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
if TYPE_CHECKING:
    _OfChannels = EventChannelSettings
else:  # the settings of all channels in one class; each channel reads its own through the type in its module
    _OfChannels = type("_OfChannels", tuple(spec.settings for spec in SPECS.values())[::-1], {"__module__": __name__})


class EventsSettings(_OfChannels):
    """Settings of user events."""

    db: OptionalPath = None
    """SQLite file of the outbox; empty turns user events off."""
    retention_days: Days = 7.0
    """Time, in days, for which an event is stored after it became final."""

    sub: str = "tcp://127.0.0.1:5570"
    """Address of the fast path (SUB)."""
    router: str = "tcp://127.0.0.1:5571"
    """Address of the guaranteed path (ROUTER)."""
    connect: bool = False
    """Connect to both addresses, which may be comma-separated lists, instead of binding them."""
    handshake_seconds: Seconds = SERVER_SECONDS
    """Longest time, in seconds, of a container's handshake; then its connection is closed."""
    curve_key: Annotated[SecretKeyFile | None, EMPTY_IS_NONE] = None
    """The gateway's ``.key_secret`` file; turns CURVE on. Without it only loopback addresses are served."""
    containers: OptionalPath = None
    """YAML file of the containers: keys or client_ids, users, quotas. Read again when it changes."""
    max_payload_bytes: int = Field(default=65_536, ge=1)
    """Limit of an event's payload, in bytes."""
    max_frame_bytes: int = Field(default=262_144, ge=1024)
    """Limit of a ZMQ frame, in bytes; a peer that sends a larger one is disconnected."""

    soft_events_per_second: Rate = 200.0
    """Events per second of a container above which NORMAL ones are collected into digests."""
    hard_events_per_second: Rate = 2_000.0
    """Events per second of a container above which NORMAL ones are refused; CRITICAL ones never are."""
    hard_queued_events: int = Field(default=100_000, ge=1)
    """Queued events of a container above which NORMAL ones are refused."""
    hard_critical_events: int = Field(default=200_000, ge=1)
    """Queued CRITICAL events of a container above which new ones get no ack, as on a full disk; it sends them again."""
    hard_critical_bytes: int = Field(default=268_435_456, ge=1)
    """The same for the bytes of these events."""
    digest_seconds: Seconds = 10.0
    """Time, in seconds, in which NORMAL events above the soft quota are collected into a digest."""

    normal_ttl_seconds: Seconds = 60.0
    """Time, in seconds, for which a NORMAL event waits for its user."""
    session_ack_seconds: Seconds = 5.0
    """Time, in seconds, for a session to acknowledge an event before the next channel is tried."""
    channel_attempts: int = Field(default=3, ge=1)
    """Attempts on a channel that fails temporarily before the next channel is tried. A CRITICAL event moves to the next
    channel at once unless the provider names a short wait. After the last channel the first one follows."""
    retry_base_seconds: Seconds = 2.0
    """Wait, in seconds, before the second attempt on a channel; doubled each time, with jitter."""
    retry_max_seconds: Seconds = 300.0
    """Longest wait, in seconds, between two attempts, and between two rounds of a CRITICAL event."""
    channel_order: str = ",".join(channel.name for channel in DEFAULT_ORDER)
    """Comma-separated channels after the session for events and users that name none."""
    max_concurrent_sends: int = Field(default=32, ge=1)
    """Limit of concurrent calls to one kind of provider."""

    web_listen: str = "127.0.0.1:8080"
    """host:port of the web page and its WebSocket; empty turns both off."""
    web_origins: str = ""
    """Comma-separated origins of pages that may open the WebSocket, besides the gateway's own page."""
    web_tls_certificate: OptionalPath = None
    """PEM file of the page's certificate chain; with web_tls_key it turns TLS on."""
    web_tls_key: OptionalPath = None
    """PEM file of that certificate's key."""
    jwt_keys: OptionalPath = None
    """Folder of ``NAME.pem`` public keys (Ed25519, RSA) of users' JWTs; NAME is the `kid`. Empty turns sessions off."""
    jwt_audience: str = "dexorder"
    """Required `aud` of a JWT."""
    jwt_max_seconds: Seconds = 900.0
    """Limit, in seconds, of the time from a JWT's `iat` to its `exp`."""
    session_queue: int = Field(default=10_000, ge=1)
    """Limit of events that wait for a slow session; above it the session ends, to be resumed from its cursor."""
    sessions_per_user: int = Field(default=20, ge=1)
    """Limit of open sessions of one user."""

    link_url: str = ""
    """Base URL of the web page for users, added to messages; empty adds none."""

    @field_validator("sub", "router", "web_listen")
    @classmethod
    def _addresses(cls, given: str) -> str:
        for address in given.split(",") if given else ():
            if not address.strip().startswith("ipc:"):
                try:
                    split_address(address)
                except ValueError:
                    raise ValueError("not an address with a port, like tcp://127.0.0.1:5570") from None
        return given

    @field_validator("channel_order")
    @classmethod
    def _channels(cls, given: str) -> str:
        names = [name.strip() for name in given.split(",") if name.strip()]
        outside = {channel.name for channel in SPECS}
        if not set(names) <= outside or len(set(names)) != len(names):
            raise ValueError(f"not a list of {', '.join(sorted(outside))}, each at most once")
        return given

    @model_validator(mode="after")
    def _safe_by_default(self) -> Self:
        if (self.web_tls_certificate is None) != (self.web_tls_key is None):
            raise ValueError("web_tls_certificate and web_tls_key must be set together")
        if self.curve_key and not self.containers:
            raise ValueError("curve_key requires containers, the file with the accepted keys and their users")
        if self.soft_events_per_second > self.hard_events_per_second:
            raise ValueError("soft_events_per_second is above hard_events_per_second")
        if self.max_payload_bytes + 4096 > self.max_frame_bytes:
            raise ValueError("max_frame_bytes must be at least max_payload_bytes + 4096")
        return self

    def exposed_addresses(self) -> list[str]:
        """Return the addresses beyond loopback that are served without encryption."""
        zmq = [] if self.curve_key else [*self.sub.split(","), *self.router.split(",")]
        web = [self.web_listen] if self.web_listen and not self.web_tls_certificate else []
        given = [address.strip() for address in (*zmq, *web)]
        return [address for address in given if self.db and not is_loopback(address)]
