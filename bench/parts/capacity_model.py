"""What a load needs of each part, from what one unit of its work costs. Pure: no measurement here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MINUTE_SECONDS = 60
CALLS_A_REQUEST, CALLS_A_SECOND = 3.05, 50.0
"""Of a day of minutes without files, and of an exchange that gives an address 50 calls a second."""
FRESH_SECONDS = 5.0
"""Age at which trades are in the table; a commit that takes longer makes it impossible."""


class Spread(StrEnum):
    """What a part can be spread over."""

    EXCHANGE = "exchanges, and addresses that call them"
    ONE = "one process"
    HOST = "processes of one host"
    HOSTS = "any number of processes"


@dataclass(frozen=True)
class Load:
    """What is asked of an installation.

    Attributes:
        markets: Markets that are followed, with trades and candles of a minute.
        trades: Trades a second of each market.
        requests: Requests for a day of one market, each second.
        firings: Firings of all triggers, each second.
        host_cores: Cores of a host.
    """

    markets: int
    trades: float
    requests: float
    firings: float
    host_cores: int


@dataclass(frozen=True)
class Costs:
    """Processor time of one unit, in microseconds, and of a commit in seconds.

    Attributes:
        relay_request: A request for a day, with its pages and its end.
        relay_report: A report of a market, each second.
        relay_firing: A firing that is stored.
        alert_row: A closed candle of a market whose price alerts do not fire, whatever their number.
        trade: A trade, by part: ingestor, gateway, kafka, udsource, spark.
        commit_seconds: Time of a commit of a batch with this many markets, by number of markets.
    """

    relay_request: float
    relay_report: float
    relay_firing: float
    alert_row: float
    trade: dict[str, float]
    commit_seconds: dict[int, float]


@dataclass(frozen=True)
class Need:
    """What a part needs for a load.

    Attributes:
        cores: Cores, or what ``unit`` says.
        ends_at: Load at which it is full however it is spread, as a multiple of this one; None for no such load.
    """

    part: str
    cores: float
    spread: Spread
    ends_at: float | None
    unit: str = "cores"


def needs(load: Load, costs: Costs) -> list[Need]:
    """Return what each part needs; the one whose spread ends first comes first."""
    trades = load.markets * load.trades
    relay = load.markets * costs.relay_report + load.requests * costs.relay_request + load.firings * costs.relay_firing
    used = [
        ("relay", relay, Spread.ONE),
        ("triggers", load.markets / MINUTE_SECONDS * costs.alert_row, Spread.HOST),
    ]
    used += [(part, trades * cost, Spread.HOSTS) for part, cost in costs.trade.items()]
    found = [_need(part, microseconds / 1e6, spread, load) for part, microseconds, spread in used]
    calls = load.requests * CALLS_A_REQUEST
    ends_at = CALLS_A_SECOND / calls if calls else None
    found.append(Need("calls, if all are to one exchange", calls, Spread.EXCHANGE, ends_at, "calls/s"))
    took = commit_seconds(load.markets, costs)
    found.append(Need("driver: a commit of trades", took, Spread.ONE, FRESH_SECONDS / took, "s"))
    return sorted(found, key=lambda each: each.ends_at if each.ends_at is not None else float("inf"))


def commit_seconds(markets: int, costs: Costs) -> float:
    """Return the seconds of a commit, on the line through the measured ones."""
    (few, few_s), (many, many_s) = sorted(costs.commit_seconds.items())
    return few_s + (many_s - few_s) * (markets - few) / (many - few)


def _need(part: str, cores: float, spread: Spread, load: Load) -> Need:
    most = {Spread.ONE: 1, Spread.HOST: load.host_cores, Spread.HOSTS: None}[spread]
    return Need(part, cores, spread, most / cores if most is not None and cores else None)
