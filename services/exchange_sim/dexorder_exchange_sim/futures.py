"""Futures of the simulated exchange that are only listed: without candles, trades and funding. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimFuture:
    """One future in an exchange's list.

    Attributes:
        settle: Currency of settlement: the quote of a linear future, the base of an inverse one.
        tick: Smallest step of a price, as exchanges print it.
        lot: Smallest step of an amount.
        listed_s: Time of the listing, seconds since the epoch.
        contract_size: Amount that a contract stands for; None where a contract is one unit of the base.
        expiry_s: Time of the expiry; None for a perpetual future.
        delisted_s: Time at which a perpetual future stopped trading; None for one that continues.
    """

    id: str
    base: str
    quote: str
    settle: str
    tick: str
    lot: str
    listed_s: int
    contract_size: int | None = None
    expiry_s: int | None = None
    delisted_s: int | None = None

    @property
    def is_linear(self) -> bool:
        """Whether it is settled in its quote currency."""
        return self.settle == self.quote

    def is_active(self, now_s: int) -> bool:
        """Return whether it is traded at a time, seconds since the epoch."""
        ends = [each for each in (self.expiry_s, self.delisted_s) if each is not None]
        return self.listed_s <= now_s < min(ends, default=now_s + 1)


def _at(text: str) -> int:
    return int(dt.datetime.fromisoformat(f"{text}+00:00").timestamp())


FUTURES = (
    SimFuture("SOLUSDT", "SOL", "USDT", "USDT", "0.0100", "0.1", _at("2020-09-14T07:00")),
    SimFuture(
        *("BTCUSDT_301227", "BTC", "USDT", "USDT", "0.1", "0.001", _at("2023-09-29T08:00")),
        expiry_s=_at("2030-12-27T08:00"),
    ),
    SimFuture(
        *("OMGUSDT", "OMG", "USDT", "USDT", "0.0010", "0.1", _at("2020-04-02T07:00")),
        delisted_s=_at("2023-06-15T09:00"),
    ),
    SimFuture("BTCUSD_PERP", "BTC", "USD", "BTC", "0.1", "1", _at("2020-08-10T07:00"), contract_size=100),
    SimFuture(
        *("ETHUSD_301227", "ETH", "USD", "ETH", "0.01", "1", _at("2023-09-29T08:00")),
        contract_size=10,
        expiry_s=_at("2030-12-27T08:00"),
    ),
)
"""A perpetual, a dated and a delisted linear future; a perpetual and a dated inverse one."""
