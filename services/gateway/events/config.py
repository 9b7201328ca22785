"""What can be set of user events: ``DEXORDER_EVENTS_<NAME>``. They are served where ``DEXORDER_EVENTS_DB`` is set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.common.config import is_loopback, split_address
from services.common.messaging.curve import SecretKeyFile
from services.common.model.user_events import SESSION_CHANNELS, Channel

# finite, and so that no point in time is beyond what a row can hold
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Days = Annotated[float, Field(gt=0, le=1e4)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EventsSettings(BaseSettings):
    """Settings of user events."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_EVENTS_", extra="ignore", populate_by_name=True, hide_input_in_errors=True
    )

    db: Path | None = None
    """SQLite file of the outbox; empty serves no user events."""
    retention_days: Days = 7.0
    """How long, in days, an event is kept after it became final."""

    sub: str = "tcp://127.0.0.1:5570"
    """Address of the fast path (SUB)."""
    router: str = "tcp://127.0.0.1:5571"
    """Address of the guaranteed path (ROUTER)."""
    connect: bool = False
    """Connect to both addresses, commas between several, instead of binding them."""
    curve_key: SecretKeyFile | None = None
    """Our ``.key_secret`` file; turns CURVE on. Without it only loopback is served."""
    containers: Path | None = None
    """YAML file of the containers: keys or client_ids, their users, quotas. Read again when it changes."""
    max_payload_bytes: int = Field(default=65_536, ge=1)
    """Largest payload of an event, in bytes."""
    max_frame_bytes: int = Field(default=262_144, ge=1024)
    """Largest ZMQ frame, in bytes; a peer that sends a larger one is cut."""

    soft_events_per_second: Rate = 200.0
    """A container's events a second above which NORMAL ones are sent later, many in one message."""
    hard_events_per_second: Rate = 2_000.0
    """A container's events a second above which NORMAL ones are refused; CRITICAL ones never are."""
    hard_queued_events: int = Field(default=100_000, ge=1)
    """A container's queued events above which NORMAL ones are refused."""
    digest_seconds: Seconds = 10.0
    """How long, in seconds, NORMAL events above the soft quota wait for each other."""

    normal_ttl_seconds: Seconds = 60.0
    """How long, in seconds, a NORMAL event waits for its user."""
    session_ack_seconds: Seconds = 5.0
    """How long, in seconds, a session may take to say that it received an event before the next channel is tried."""
    send_timeout_seconds: Seconds = 10.0
    """How long, in seconds, one call to a provider may take."""
    channel_attempts: int = Field(default=3, ge=1)
    """Tries of a channel that is temporarily refused before the next one; a CRITICAL event goes on to the next at once,
    but for a provider that names a short time. After the last one all begins anew."""
    retry_base_seconds: Seconds = 2.0
    """Wait, in seconds, before the second try of a channel; doubled each time, with jitter."""
    retry_max_seconds: Seconds = 300.0
    """Longest wait, in seconds, between two tries; also between two rounds of a CRITICAL event."""
    channel_order: str = "TELEGRAM,PUSH,EMAIL,DISCORD,SLACK"
    """Channels after the session for events and users that name none, commas between."""
    max_concurrent_sends: int = Field(default=32, ge=1)
    """Most calls under way to one kind of provider."""

    web_listen: str = "127.0.0.1:8080"
    """host:port of the web page and its WebSocket; empty serves none."""
    web_origins: str = ""
    """Origins of pages that may open the WebSocket, commas between; the gateway's own page may always."""
    web_tls_certificate: Path | None = None
    """PEM file of the page's certificate chain; with web_tls_key it turns TLS on."""
    web_tls_key: Path | None = None
    """PEM file of its key."""
    jwt_keys: Path | None = None
    """Folder of ``NAME.pem`` public keys (Ed25519, RSA) of users' JWTs; NAME is the `kid`. Empty: no sessions."""
    jwt_audience: str = "dexorder"
    """What a JWT's `aud` must be."""
    jwt_max_seconds: Seconds = 900.0
    """Longest life of a JWT, in seconds, from its `iat` to its `exp`."""
    session_queue: int = Field(default=10_000, ge=1)
    """Most events that wait for a slow session; one more ends it, and it resumes from its cursor."""
    sessions_per_user: int = Field(default=20, ge=1)
    """Most open sessions of one user."""

    telegram_url: str = "https://api.telegram.org"
    """Base URL of the Bot API."""
    telegram_token: SecretStr = SecretStr("")
    """The bot's token; empty turns the channel off."""
    smtp_url: SecretStr = SecretStr("")
    """``smtp://user:password@host:port`` (STARTTLS where offered) or ``smtps://``; empty turns e-mail off."""
    smtp_from: str = "dexorder@localhost"
    """Sender of the mails."""
    vapid_key: Path | None = None
    """PEM file of the private key for web push; empty turns it off."""
    vapid_contact: str = "mailto:dexorder@localhost"
    """Whom a push service may write to."""
    fcm_credentials: Path | None = None
    """Google's service account file for mobile push; empty turns it off."""
    fcm_url: str = "https://fcm.googleapis.com"
    """Base URL of FCM."""
    discord_hosts: str = "discord.com,discordapp.com"
    """Hosts that a user's Discord webhook may name, commas between, each with its port where that is not 443."""
    slack_hosts: str = "hooks.slack.com"
    """Hosts that a user's Slack webhook may name."""
    push_hosts: str = "fcm.googleapis.com,*.push.services.mozilla.com,*.notify.windows.com,*.push.apple.com"
    """Hosts that a browser's subscription may name; ``*.`` takes any name below."""
    plain_http: bool = False
    """Let webhooks and subscriptions be http: and loopback; for tests."""
    link_url: str = ""
    """Base URL of the web page as users reach it, put under messages; empty puts none."""

    @field_validator(
        "db",
        "curve_key",
        "containers",
        "web_tls_certificate",
        "web_tls_key",
        "jwt_keys",
        "vapid_key",
        "fcm_credentials",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("sub", "router", "web_listen")
    @classmethod
    def _addresses(cls, given: str) -> str:
        for address in given.split(",") if given else ():
            if not address.strip().startswith("ipc:"):
                try:
                    split_address(address)
                except ValueError:
                    raise ValueError("no address with a port") from None
        return given

    @field_validator("telegram_url", "fcm_url")
    @classmethod
    def _base_urls(cls, given: str) -> str:
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("no URL like https://host")
        return given

    @field_validator("channel_order")
    @classmethod
    def _channels(cls, given: str) -> str:
        names = [name.strip() for name in given.split(",") if name.strip()]
        outside = {channel.name for channel in Channel} - {channel.name for channel in SESSION_CHANNELS}
        if not set(names) <= outside or len(set(names)) != len(names):
            raise ValueError(f"not some of {', '.join(sorted(outside))}, each once")
        return given

    @model_validator(mode="after")
    def _safe_by_default(self) -> Self:
        if (self.web_tls_certificate is None) != (self.web_tls_key is None):
            raise ValueError("web_tls_certificate and web_tls_key go together")
        if self.curve_key and not self.containers:
            raise ValueError("curve_key needs containers: whose keys are let in, and for which users they may speak")
        if self.soft_events_per_second > self.hard_events_per_second:
            raise ValueError("soft_events_per_second is above hard_events_per_second")
        if self.max_payload_bytes + 4096 > self.max_frame_bytes:
            raise ValueError("max_frame_bytes leaves no room for an event of max_payload_bytes; 4096 more are needed")
        return self

    def exposed_addresses(self) -> list[str]:
        """Addresses beyond loopback that are served without encryption."""
        zmq = [] if self.curve_key else [*self.sub.split(","), *self.router.split(",")]
        web = [self.web_listen] if self.web_listen and not self.web_tls_certificate else []
        given = [address.strip() for address in (*zmq, *web)]
        return [address for address in given if self.db and not is_loopback(address)]
