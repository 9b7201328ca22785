"""Facts about an exchange: its candles, trades, error codes and quirks. Pure.

Each module of ``dialects/`` has the facts about one exchange, and its package finds them. docs/adding-an-exchange.md
explains how to add one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from dexorder_common.model.datasets import Dataset
from dexorder_ingestor.exchange.answers import MARKET, Path, at
from dexorder_ingestor.exchange.trades import TradeRow, TradeSeries

Columns = tuple[int | str | None, ...]
"""Indexes in a row, or keys of it: open time, open, high, low, close, volume, quote volume, number of trades."""
TradeReader = Callable[[list[Any], Any, int], list[TradeRow]]
"""Reads the raw rows of an answer, with the whole answer and the queried time; raises BadAnswer."""


class Remedy(StrEnum):
    """Reaction to an error code."""

    REPEAT = "repeat the query"
    SLOW_DOWN = "repeat the query after a pause of the whole exchange"


class HealingCode(NamedTuple):
    """Reaction to an error code, and the meaning of the code for the documentation."""

    remedy: Remedy
    meaning: str


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Candles that one call of an exchange returns.

    Attributes:
        wide: The window may span more periods than that; the exchange then returns the oldest ``candles`` of it.
        names_symbol: The answer names its symbol, which has been compared with the queried one.
    """

    candles: int
    wide: bool = False
    names_symbol: bool = False


@dataclass(frozen=True, slots=True)
class CandleFacts:
    """Facts about the candles of an exchange.

    Attributes:
        limit: Largest number of candles of one call, or of one query for trades.
        wide: A window may span more periods than that; its oldest candles are returned then. Only for exchanges known
            to do so: one that returns the newest, or cuts the window, would make holes look empty.
        narrow: Returns whether a market of ccxt is an exception to ``wide``.
        reaches_back: ccxt starts some queries a call's reach before the end of the window. Rows before the window are
            left out, which is a fault elsewhere.
        read_trades: Reads the raw trades from which candles are built; None if history is the exchange's own candles.
        rows_at: Path of the rows in an answer; None if it is not known.
        columns: Columns of raw rows of spot markets; None leaves reading them to ccxt, which drops quote volume and
            number of trades.
        linear_columns: The same for linear derivatives.
        inverse_columns: The same for inverse derivatives.
        time_unit_ms: Milliseconds of the unit of open times in raw rows.
        symbol_at: Path of the market's name in an answer, if it is not a part of ``rows_at``.
        running: Index and value of the mark in a raw row that its candle is still open.
        volume_tolerance: Relative difference between the volume of a coarser candle and the sum of the finer ones that
            rounding explains; None if coarser candles are not checksums: unknown, or candles are built from trades.
        quote_is_sum: The quote volume of raw rows is the sum of price times amount of the trades, so it shows each
            correction of one. Not set where that was not checked.
        publish_seconds: Time after a candle's close in which the exchange publishes it. No exchange promises one; these
            are cautious.
    """

    limit: int
    wide: bool = False
    narrow: Callable[[Mapping[str, Any]], bool] = lambda market: False
    reaches_back: bool = False
    read_trades: TradeReader | None = None
    rows_at: Path | None = None
    columns: Columns | None = None
    linear_columns: Columns | None = None
    inverse_columns: Columns | None = None
    time_unit_ms: int = 1
    symbol_at: Path | None = None
    running: tuple[int, str] | None = None
    volume_tolerance: float | None = None
    quote_is_sum: bool = False
    publish_seconds: float = 120.0

    @property
    def limits(self) -> CallLimits:
        """Limits of one call."""
        return CallLimits(self.limit, self.wide, self.symbol_at is not None or MARKET in (self.rows_at or ()))

    def columns_of(self, market: Mapping[str, Any]) -> Columns | None:
        """Return the columns of a market's raw rows, if they are known; ``market`` is ccxt's."""
        if market.get("spot"):
            return self.columns
        if market.get("option"):
            return None
        return self.linear_columns if market.get("linear") else self.inverse_columns if market.get("inverse") else None


@dataclass(frozen=True, slots=True)
class PointFacts:
    """Facts about the history of a dataset without periods. ccxt drops rows of other markets, so raw rows are read.

    Attributes:
        limit: Largest number of rows of one call.
        rows_at: Path of the rows in an answer.
        fields: Names of the exchange's fields, by the dataset's names.
        market: Field with the exchange's id of the market.
    """

    limit: int
    rows_at: Path
    fields: Mapping[str, str]
    market: str = "symbol"


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """Facts about the files of whole days of candles that an exchange publishes beside its API.

    A file is a ZIP of one CSV file with the same name. It is used only if the exchanges file names the server.

    Attributes:
        path: Path of a file: the exchange's id of a spot ``market``, ccxt's ``period``, the ``day`` as 2024-01-31.
        columns: Columns of its rows.
        source: Where the files are documented.
    """

    path: str
    columns: Columns
    source: str


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """Facts about the errors of an exchange.

    Attributes:
        codes_at: Paths where an answer may hold an error code; every answer has one if ``always_coded``.
        healing: Error codes that heal although ccxt's class of them does not say so, or does not say how.
        throttled_until: Text of an answer of any status that names the second until which the exchange refuses calls.
    """

    codes_at: tuple[Path, ...] = ()
    always_coded: bool = False
    healing: Mapping[str, HealingCode] = field(default_factory=dict)
    throttled_until: re.Pattern[str] | None = None

    def remedy(self, error_text: str) -> Remedy | None:
        """Return the remedy for the exchange's answer in the text of an error; None leaves it to ccxt's class."""
        _, brace, rest = error_text.partition("{")
        try:
            code = self.code(json.loads(brace + rest))
        except ValueError:
            return None
        found = (each for c, each in self.healing.items() if code == c or (code or "").startswith(f"{c}:"))
        return next((each.remedy for each in found), None)

    def code(self, answer: Any) -> str | None:
        """Return the error code of an answer, without blanks."""
        found = (at(answer, path) for path in self.codes_at)
        return next((str(code).replace(" ", "") for code in found if isinstance(code, (str, int))), None)


class DelistingFact(NamedTuple):
    """Field of the exchange's raw markets with the time at which a spot market or a swap stops trading.

    Attributes:
        field: Field with the time, in milliseconds as a number or a text.
        never: Value of a market that continues, if that is a number like a time.
    """

    field: str
    never: str = ""


@dataclass(frozen=True, slots=True)
class Quirks:
    """Other facts about an exchange.

    Attributes:
        dark_pool_suffix: End of the ids of dark-pool markets, which share their symbol with a lit one; empty for none.
        other_hosts: Hosts that serve the same data, as ``other_hosts`` of the exchanges file takes them. They are used
            only if that file names them.
        hosts_source: Where these hosts are documented.
        delisting: Where its markets say when trading ends; None if they do not, or it is not known.
    """

    dark_pool_suffix: str = ""
    other_hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts_source: str = ""
    delisting: DelistingFact | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """Facts about one exchange.

    Attributes:
        ccxt: ccxt's id of the exchange.
        points: By dataset without periods, how its history is queried.
        archive: Its files of whole days; None without any. A twin has none.
        twins: ccxt's ids of other exchanges with the same API.
    """

    ccxt: str
    candles: CandleFacts
    trades: TradeSeries = field(default_factory=TradeSeries)
    points: Mapping[Dataset, PointFacts] = field(default_factory=dict)
    errors: ErrorFacts = ErrorFacts()
    quirks: Quirks = Quirks()
    archive: ArchiveFacts | None = None
    twins: tuple[str, ...] = ()

    @property
    def history(self) -> Literal["candles", "trades"]:
        """Source of candles: the exchange's own candles, or its trades."""
        return "trades" if self.candles.read_trades else "candles"
