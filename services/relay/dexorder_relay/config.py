"""Settings of the relay."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from dexorder_common.messaging.curve import KeyFolder, SecretKeyFile
from dexorder_common.messaging.handshake import SERVER_SECONDS
from dexorder_common.rpc.settings import ServiceSettings, Transport
from dexorder_relay.access import Limits


class RelaySettings(ServiceSettings):
    """Settings of the relay, ``DEXORDER_RELAY_<NAME>`` in the environment unless an alias is given."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True, env_prefix="DEXORDER_RELAY_")

    listen: str = "127.0.0.1:50051"
    """host:port of the gRPC server; port 0 uses a free one."""
    transport: Transport = "auto"
    """Transport of the gRPC server; auto takes native where the package dexorder_http2 is installed, else grpcio."""
    metrics_listen: str = "127.0.0.1:9464"
    """host:port of the Prometheus endpoint; empty serves none."""
    broker_listen: str = "tcp://127.0.0.1:5567"
    """ZMQ endpoint for ingestors; port 0 uses a free one."""
    broker_max_frame_bytes: int = Field(default=65_536, ge=1024)
    """Largest frame an ingestor may send, in bytes; a peer that sends a larger one is disconnected."""
    broker_heartbeat_seconds: float = Field(default=5.0, gt=0)
    """Time between ZMTP pings, in seconds; a peer silent for three of them is dropped."""
    broker_handshake_seconds: float = Field(default=SERVER_SECONDS, gt=0)
    """Longest time, in seconds, of an ingestor's handshake; then its connection is closed."""
    broker_curve_key: SecretKeyFile | None = None
    """The broker's own .key_secret file, readable only by its owner; with broker_curve_clients it turns CURVE on."""
    broker_curve_clients: KeyFolder | None = None
    """Folder of the public .key files of the ingestors that may connect; read again when it changes."""
    max_slots_per_ingestor: int = Field(default=1_000, ge=1)
    """Offers kept for one socket identity; any more are dropped and counted."""
    db: Path = Path("relay.db")
    """SQLite file with requests, jobs, reported coverage and notifications. A running relay holds ``relay.db.lock``
    beside it."""
    exchanges: Path = Field(default=Path("sim"), validation_alias="DEXORDER_EXCHANGES")
    """The exchanges file, or the name of a shipped one (binance, sim); a ticker may name any of its venues."""
    lease_seconds: float = Field(default=15.0, ge=1)
    """Longest silence of a running job, in seconds, before it is given to another ingestor; at least 1."""
    max_attempts: int = Field(default=5, ge=1)
    """Dispatches of one job that may end in a row without a page in Kafka or in the table; then the job is given up."""
    retry_backoff_seconds: float = Field(default=1.0, ge=0)
    """Wait, in seconds, after the first such dispatch; doubles with each one after it, up to 30 s."""
    request_timeout_seconds: float = Field(default=900.0, gt=0)
    """A request ends as TIMEOUT after this long without progress, in seconds."""
    job_periods: int = Field(default=50_000, ge=1)
    """Largest number of candle periods in one job."""
    page_periods: int = Field(default=1_000, ge=1)
    """Candle periods in a page, for the page counts of the progress."""
    recheck_after_seconds: tuple[float, ...] = (600.0, 3_600.0, 86_400.0)
    """Delays after which a provisional absence is queried again, in seconds, ascending; JSON list, [] for never."""
    parallel_rechecks: int = Field(default=2, ge=1)
    """Largest number of these queries at one exchange at a time. They start when no other job of it is queued."""
    max_request_periods: int = Field(default=200_000_000, ge=1)
    """Largest number of candle periods of one request, and largest ``limit``."""
    retention_days: float = Field(default=30.0, gt=0)
    """How long ended requests and their notifications are kept, in days."""
    dispatch_retention_days: float = Field(default=60.0, gt=0)
    """How long dispatches are known, in days; pages of others are refused. Longer than the topics' retention."""
    count_attempts: int = Field(default=6, ge=1)
    """Attempts to count a request's rows in one round; 0.2 s, 0.4 s, ... apart. The next round is 5 s later."""

    quota_unfinished_requests: int = Field(default=10_000, ge=0)
    """Largest number of unfinished requests of one client. Quotas need identity; a caller's entry may have its own."""
    quota_submissions_per_minute: int = Field(default=6_000, ge=1)
    """Largest number of submissions of one client in a minute, repeats included."""
    quota_unfinished_periods: int = Field(default=1_000_000_000, ge=0)
    """Largest number of candle periods in the unfinished requests of one client."""
    quota_open_streams: int = Field(default=1_000, ge=0)
    """Largest number of open streams of one client: progress, notifications, coverage, live data and others."""
    quota_subscriptions: int = Field(default=10_000, ge=0)
    """Largest number of realtime subscriptions of one client."""
    quota_triggers: int = Field(default=10_000, ge=0)
    """Largest number of triggers of one client."""
    quota_trigger_bytes: int = Field(default=16 * 1024 * 1024, ge=0)
    """Largest number of bytes of the texts, tickers and parameters of one client's triggers together."""
    quota_udfs: int = Field(default=20, ge=0)
    """Largest number of names of UDFs of one client, running or stopped."""
    quota_receipts: int = Field(default=100, ge=0)
    """Largest number of receipts of one client. Each keeps a snapshot of a table, with its files."""
    quota_periods_per_day: int = Field(default=10_000_000_000, ge=1)
    """Largest number of candle periods in the requests that one client makes in a day, ended and cancelled ones too."""
    quota_refreshed_periods_per_day: int = Field(default=100_000_000, ge=1)
    """Largest number of candle periods that one client has fetched again in a day, by refreshes and repairs."""

    gateway: str = "127.0.0.1:50053"
    """host:port of the gateway's EventPublisherService, which takes the firings of triggers that name a user."""
    parallel_backtests: int = Field(default=1, ge=1)
    """Largest number of BacktestTrigger calls that run at the same time, each in a separate process; others wait."""
    backtest_rows: int = Field(default=1_000_000, ge=1)
    """Largest number of stored candles or trades of one market in a BacktestTrigger call."""
    backtest_seconds: float = Field(default=120.0, gt=0)
    """Longest time, in seconds, of one BacktestTrigger call from its start."""

    control_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest time, in seconds, for an ingestor to carry out an instruction and to say so."""
    live_queue: int = Field(default=10_000, ge=1)
    """Live trades and candles kept for a client that does not read; then they are coalesced or dropped."""

    def limits(self) -> Limits:
        """Return the quotas of a caller without quotas in its entry."""
        return Limits(**{each.name: getattr(self, f"quota_{each.name}") for each in fields(Limits)})

    @field_validator("recheck_after_seconds")
    @classmethod
    def _ascending(cls, delays: tuple[float, ...]) -> tuple[float, ...]:
        if any(each <= 0 for each in delays) or list(delays) != sorted(set(delays)):
            raise ValueError(f"delays {list(delays)} are not above 0 and ascending")
        return delays

    @model_validator(mode="after")
    def _whole_curve(self) -> Self:
        if (self.broker_curve_key is None) != (self.broker_curve_clients is None):
            raise ValueError("broker_curve_key and broker_curve_clients must be set together")
        return self

    def exposed_addresses(self) -> list[str]:
        """Return the addresses that are not encrypted; only CURVE encrypts the broker's frames."""
        return [*super().exposed_addresses(), *([] if self.broker_curve_key else [self.broker_listen])]
