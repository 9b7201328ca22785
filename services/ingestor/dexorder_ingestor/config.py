"""Settings, read from ``DEXORDER_INGESTOR_<NAME>``. docs/completeness.md explains the settings of evidence."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from dexorder_common.messaging.curve import PublicKeyFile, SecretKeyFile
from dexorder_common.messaging.handshake import CLIENT_SECONDS
from dexorder_common.model.page import MAX_PAGE_CANDLES
from dexorder_common.rpc.settings import ServiceSettings


class IngestorSettings(ServiceSettings):
    """Settings of the ingestor."""

    model_config = SettingsConfigDict(env_prefix="DEXORDER_INGESTOR_")

    name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1)
    """Name of this ingestor for the relay, unique among its ingestors; by default host name and process id."""
    listen: str = "127.0.0.1:50054"
    """host:port of the gRPC server: health, reflection and channelz only."""
    metrics_listen: str = "127.0.0.1:9465"
    """host:port of the Prometheus endpoint; empty serves none."""
    exchanges: Path = Field(default=Path("sim"), validation_alias="DEXORDER_EXCHANGES")
    """The exchanges file, or the name of a shipped one (binance, sim): venues, how ccxt reaches them, slots."""
    broker: str = "tcp://127.0.0.1:5567"
    """ZMQ address of the relay's broker."""
    broker_curve_key: SecretKeyFile | None = None
    """This ingestor's .key_secret file, readable only by its owner; with broker_curve_server it turns CURVE on."""
    broker_curve_server: PublicKeyFile | None = None
    """The broker's public .key file; a broker that can't prove it has the secret key is offered no slot."""
    broker_handshake_seconds: float = Field(default=CLIENT_SECONDS, gt=0)
    """Longest time, in seconds, of the handshake with the broker; a proxy that detects protocols waits for 10 s."""
    relay: str = "127.0.0.1:50051"
    """host:port of the relay's gRPC server, for reports."""
    gateway: str = "127.0.0.1:50053"
    """host:port of the gateway's KafkaPixy."""
    cluster: str = ""
    """The gateway's name of the Kafka cluster; empty is the gateway's default."""

    rate_limit_dir: Path = Field(
        default_factory=lambda: Path(tempfile.gettempdir()) / f"dexorder-budgets-{os.getuid()}"
    )
    """Folder that all ingestors of a host share: rate limits, and statistics of the exchanges' answers; by default one
    for each user."""
    instruments_refresh_seconds: float = Field(default=3600.0, gt=0)
    """Time, in seconds, between two reports of an exchange's instruments to the relay."""

    heartbeat_seconds: float = Field(default=5.0, gt=0)
    """Time between two heartbeats of a running dispatch, or reports of its delay, in seconds; the relay's lease is
    15."""
    dispatch_deadline_seconds: float = Field(default=3600.0, gt=0)
    """Longest time, in seconds, that a dispatch may take before it is returned to the relay."""
    publish_timeout_seconds: float = Field(default=180.0, gt=0)
    """Longest time, in seconds, that one record or report may take before its dispatch is returned to the relay. All
    attempts of a job must last longer than the relay's request_timeout, so that an outage of Kafka ends no request."""
    rpc_timeout_seconds: float = Field(default=10.0, gt=0)
    """Deadline of one call to the gateway or the relay, in seconds."""
    complete_repeat_seconds: float = Field(default=60.0, ge=0)
    """A WorkComplete sent less than this many seconds ago is repeated after a reconnect."""

    page_candles: int = Field(default=MAX_PAGE_CANDLES, ge=1, le=MAX_PAGE_CANDLES)
    """Largest number of periods in one page."""
    prefetch_pages: int = Field(default=1, ge=1, le=16)
    """Pages fetched ahead of the one that is being published."""
    attempts: int = Field(default=8, ge=1)
    """Attempts of one query to an exchange, bad answers and retriable errors together."""
    refused_attempts: int = Field(default=3, ge=1)
    """Attempts after HTTP 403, 404 or 451, which are rarely transient."""
    call_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest wait for one answer of an exchange, in seconds."""
    backoff_seconds: float = Field(default=0.2, ge=0)
    """First pause before another attempt, in seconds; doubles each time, with jitter."""
    longest_backoff_seconds: float = Field(default=10.0, ge=0)
    """Longest such pause, in seconds."""
    ban_seconds: float = Field(default=5.0, ge=0)
    """Pause of a whole exchange, in seconds, after "too many requests" without Retry-After."""
    longest_ban_seconds: float = Field(default=600.0, ge=0)
    """A ban that lasts longer than this many seconds ends the dispatch with an error."""

    hole_answers: int = Field(default=8, ge=2)
    """Least number of agreeing answers that prove a range empty when no known candles are on both sides of it."""
    empty_job_answers: int = Field(default=20, ge=2)
    """The same for a whole job without any candle, if one answer covers all of it; if half of the answers are untrue,
    all of them are once in a million."""
    hole_spacing_seconds: float = Field(default=0.2, ge=0)
    """First wait between two such answers, in seconds; each next one is twice as long, within recheck_seconds."""
    evidence_queries: int = Field(default=100, ge=1)
    """Largest number of queries without progress in one page before its unverified part is given up as missing."""
    recheck_seconds: float = Field(default=30.0, ge=0)
    """Longest time, in seconds, that a dispatch waits in all between repeated queries about the same candles."""
    close_wait_seconds: float = Field(default=10.0, ge=0)
    """Longest wait, in seconds, for the last candle of a range to close."""
    closing_lag_seconds: float = Field(default=1.0, ge=0)
    """A candle counts as closed this many seconds after its period ended, by the exchange's clock."""

    trade_poll_seconds: float = Field(default=5.0, gt=0)
    """Time, in seconds, between two queries for a realtime job's trades at an exchange that does not number them."""
    candle_check_seconds: float = Field(default=180.0, gt=0)
    """Time, in seconds, between two comparisons of a realtime job's closed candles with the exchange's own: a call each
    time for each market and period. A candle can be amended for 300 s after its end."""

    @model_validator(mode="after")
    def _complete_curve(self) -> Self:
        if (self.broker_curve_key is None) != (self.broker_curve_server is None):
            raise ValueError("broker_curve_key and broker_curve_server go together")
        return self
