"""Settings of the simulated exchange: ``DEXORDER_SIM_<NAME>``."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder_common.config import is_loopback
from dexorder_exchange_sim.faults import FaultRule


class SimSettings(BaseSettings):
    """Settings of the simulated exchange, from the environment (lists and rules as JSON)."""

    model_config = SettingsConfigDict(env_prefix="DEXORDER_SIM_", frozen=True, use_attribute_docstrings=True)

    allow_insecure: bool = Field(default=False, validation_alias="DEXORDER_ALLOW_INSECURE")
    """Permit listening beyond the loopback interface, where anyone may set faults. Default false."""
    listen: str = "127.0.0.1:9000"
    """Address ``host:port``; port 0 selects a free one. Default 127.0.0.1:9000."""
    seed: int = 9
    """Seed of the synthetic market and of faults. Default 9, with which BTC, ETH and SOL have realistic prices."""
    now_ns: int | None = Field(default=None, ge=0, lt=2**63)
    """Time at which the clock starts, nanoseconds since the epoch. Default none: the machine's clock."""
    speed: float | None = Field(default=None, ge=0, le=100_000)
    """Speed of the clock, a multiple of the machine's; 0 stands still. Default 0 with ``now_ns``, else 1."""
    recorded: tuple[str, ...] = ()
    """``FILE=SYMBOL``, ``FILE=SYMBOL@PERIOD`` or ``FILE=SYMBOL@trades`` entries, see `recorded.load`. Default none."""
    markets: int = Field(default=0, ge=0, le=9999)
    """Number of added markets ``X0001/USDT`` and so on, each with four trades a second. Default 0."""
    markets_busy_seconds: int = Field(default=60, ge=1, le=60)
    """Number of seconds in each minute that have trades in these markets. Default 60."""
    funding: dict[str, tuple[tuple[int, int], ...]] = Field(default_factory=dict)
    """By market that also is a perpetual future, ``[second, hours]``: since that second funding is paid at this
    interval, as JSON: ``{"BTCUSDT": [[1704067200, 8], [1706745600, 4]]}``. Default none."""
    futures: bool = False
    """Also list futures of Binance: perpetual, dated and delisted ones, linear and inverse, all without data. Default
    false."""
    faults: tuple[FaultRule, ...] = ()
    """Fault rules in force from the start, see `faults.FaultRule`. Default none."""
    latency_ms: float = Field(default=0, ge=0)
    """Delay before every answer, milliseconds. Default 0."""
    weight_limit: int = Field(default=0, ge=0)
    """Request weight per minute above which answers are 429; 0 only counts. Default 0."""
    call_limit: int = Field(default=0, ge=0)
    """Requests in any second above which answers are 429; 0 only counts. Default 0."""

    @field_validator("listen")
    @classmethod
    def _local(cls, listen: str, info: ValidationInfo) -> str:
        _, colon, port = listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"DEXORDER_SIM_LISTEN {listen!r} is not host:port")
        if not info.data.get("allow_insecure") and not is_loopback(listen):
            raise ValueError(
                f"DEXORDER_SIM_LISTEN {listen!r} is not loopback; set DEXORDER_ALLOW_INSECURE=1 to permit it"
            )
        return listen
