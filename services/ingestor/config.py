"""What can be set: ``DEXORDER_INGESTOR_<NAME>``. docs/ingestor.md explains the odds behind the evidence settings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from services.common.config import ServiceSettings
from services.common.messaging.curve import PublicKeyFile, SecretKeyFile
from services.common.model.page import MAX_PAGE_CANDLES


class IngestorSettings(ServiceSettings):
    """Settings of the ingestor."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, env_prefix="DEXORDER_INGESTOR_"
    )

    listen: str = "127.0.0.1:50054"
    """host:port of the gRPC server: health, reflection and channelz only."""
    metrics_listen: str = "127.0.0.1:9465"
    """host:port of the Prometheus endpoint; empty serves none."""
    exchanges: Path = Field(default=Path("exchanges/sim.yaml"), validation_alias="DEXORDER_EXCHANGES")
    """The exchanges file: venues, how ccxt reaches them, slots."""
    broker: str = "tcp://127.0.0.1:5567"
    """ZMQ address of the relay's broker."""
    broker_curve_key: SecretKeyFile | None = None
    """Our own .key_secret file, open to nobody else; with broker_curve_server it turns CURVE on."""
    broker_curve_server: PublicKeyFile | None = None
    """The broker's public .key file; who can't prove to have its secret gets no slot offered."""
    relay: str = "127.0.0.1:50051"
    """host:port of the relay's gRPC server, for page reports."""
    gateway: str = "127.0.0.1:50053"
    """host:port of the gateway's KafkaPixy."""
    cluster: str = ""
    """Kafka cluster, by the gateway's name for it; empty is its default."""

    rate_limit_dir: Path = Field(
        default_factory=lambda: Path(tempfile.gettempdir()) / f"dexorder-budgets-{os.getuid()}"
    )
    """Folder of the rate budgets; all ingestors of a host share one, of a user by default."""
    markets_refresh_seconds: float = Field(default=3600.0, gt=0)
    """Time, in seconds, between two reports of an exchange's markets to the relay."""

    heartbeat_seconds: float = Field(default=5.0, gt=0)
    """Time between two heartbeats of a running job, in seconds; the relay's lease is 15."""
    job_deadline_seconds: float = Field(default=3600.0, gt=0)
    """Longest time, in seconds, one dispatch may take; then it goes back to the relay."""
    publish_timeout_seconds: float = Field(default=60.0, gt=0)
    """Longest time, in seconds, one record may wait for the gateway; then the job goes back to the relay."""
    rpc_timeout_seconds: float = Field(default=10.0, gt=0)
    """Deadline of one call to the gateway or the relay, in seconds."""
    complete_repeat_seconds: float = Field(default=60.0, ge=0)
    """A WorkComplete younger than this, in seconds, is repeated after a reconnect."""

    page_candles: int = Field(default=MAX_PAGE_CANDLES, ge=1, le=MAX_PAGE_CANDLES)
    """Periods one page settles."""
    prefetch_pages: int = Field(default=1, ge=1, le=16)
    """Pages fetched ahead of the one being published."""
    attempts: int = Field(default=8, ge=1)
    """Tries of one question to an exchange, bad answers and retriable errors together."""
    refused_attempts: int = Field(default=3, ge=1)
    """Tries after HTTP 403, 404 or 451, which rarely heal."""
    call_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest wait for one answer of an exchange, in seconds."""
    backoff_seconds: float = Field(default=0.2, ge=0)
    """First pause before a retry, in seconds; doubles each time, with jitter."""
    longest_backoff_seconds: float = Field(default=10.0, ge=0)
    """Largest such pause, in seconds."""
    ban_seconds: float = Field(default=5.0, ge=0)
    """Pause of a whole exchange, in seconds, after "too many requests" without Retry-After."""
    longest_ban_seconds: float = Field(default=600.0, ge=0)
    """A ban that ends later than this many seconds from now ends the job with an error."""

    hole_answers: int = Field(default=8, ge=2)
    """Agreeing answers, at least, that prove a span empty when no known candles stand on both sides of it."""
    empty_job_answers: int = Field(default=20, ge=2)
    """The same for all of a job without any candle, where one answer speaks of all of it: all untrue, at a half, once
    in a million."""
    hole_spacing_seconds: float = Field(default=0.2, ge=0)
    """Time between two such answers, in seconds."""
    evidence_queries: int = Field(default=100, ge=1)
    """Most questions about one page before its unverified part is given up as missing."""
    close_wait_seconds: float = Field(default=10.0, ge=0)
    """Wait at most this long, in seconds, for a range's last candle to close."""
    closing_lag_seconds: float = Field(default=1.0, ge=0)
    """A candle counts as closed this many seconds after its period ended, by the exchange's clock."""

    @model_validator(mode="after")
    def _whole_curve(self) -> Self:
        if (self.broker_curve_key is None) != (self.broker_curve_server is None):
            raise ValueError("broker_curve_key and broker_curve_server go together")
        return self
