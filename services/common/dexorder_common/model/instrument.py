"""Instruments and series. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from enum import StrEnum
from typing import Any, NamedTuple

from dexorder_common.model.datasets import CANDLES, TICKERS, Dataset, dataset_named, realtime_dataset
from dexorder_common.model.errors import InvalidRequest

MAX_TICKER_LENGTH = 256
ALL_SYMBOLS = "*"
"""Stands for the symbol where a ticker means all instruments of a venue."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """An instrument at a venue. Its text, ``BTC/USDT.BINANCE``, is the ticker.

    Attributes:
        symbol: Unified symbol of ccxt. Only ccxt interprets it: ``BTC/USDT:USDT`` (swap), ``BTC/USD:BTC`` (inverse
            swap), ``BTC/USDT:USDT-251226`` (dated future), ``BTC/USDT:USDT-251226-50000-C`` (option), ``ETH2.S/ETH``.
            Case matters.
        venue: Name of the exchange, in ASCII.
    """

    symbol: str
    venue: str

    @staticmethod
    def parse(ticker: str) -> Instrument:
        """Split a ticker at its last dot; symbols may contain dots.

        Raises:
            InvalidRequest: The ticker is too long or lacks a dot; or it has an empty side, a venue that is not ASCII,
                an unprintable character (a line break, half of a surrogate pair) or surrounding white space.
        """
        if len(ticker) > MAX_TICKER_LENGTH:
            raise InvalidRequest(f"ticker {ticker[:32]!r}... has more than {MAX_TICKER_LENGTH} characters")
        symbol, dot, venue = ticker.rpartition(".")
        printable = ticker.isprintable() and ticker == ticker.strip()
        if not (dot and symbol and venue and venue.isascii() and printable):
            raise InvalidRequest(f"ticker {ticker!r} is not SYMBOL.VENUE, for example BTC/USDT.BINANCE")
        return Instrument(symbol, venue)

    @property
    def is_whole_exchange(self) -> bool:
        """Whether it stands for all instruments of its venue."""
        return self.symbol == ALL_SYMBOLS

    def __str__(self) -> str:
        return f"{self.symbol}.{self.venue}"


_NEAR, _NEAR_BASE = 0.75, 0.6
"""Least likeness of a suggested symbol and of its base currency. Any two symbols with one quote currency are alike to
0.6; two letters of a currency's three that have changed places leave 0.67."""


def similar_symbols(symbol: str, listed: Iterable[str], count: int = 3) -> list[str]:
    """Return the listed symbols that may be meant by a misspelt one, best first; letters may be of either case."""
    by_upper: dict[str, list[str]] = {}
    for each in listed:
        by_upper.setdefault(each.upper(), []).append(each)
    wanted = symbol.upper() if "/" in symbol else symbol.upper().replace("-", "/")
    near = [each for each in get_close_matches(wanted, by_upper, n=3 * count, cutoff=_NEAR) if _same_base(wanted, each)]
    return [each for upper in near for each in by_upper[upper]][:count]


def _same_base(wanted: str, listed: str) -> bool:
    base, slash, _ = wanted.partition("/")
    return not slash or SequenceMatcher(None, base, listed.partition("/")[0]).ratio() >= _NEAR_BASE


class Series(NamedTuple):
    """The rows of one dataset of one instrument or, for some datasets, of all instruments of an exchange.

    Attributes:
        ticker: ``*.VENUE`` if the dataset concerns a whole exchange.
        period_seconds: 0 unless the dataset has periods.
    """

    ticker: str
    period_seconds: int = 0
    dataset: Dataset = CANDLES

    @classmethod
    def decode(cls, ticker: str, period_seconds: int, dataset: str = "") -> Series:
        """Return a series from its form on the wire and in tables; InvalidRequest if the dataset is unknown or
        does not go with the period.

        Args:
            dataset: Its ``Dataset.code``. If it is empty, the period tells candles, 0 stands for trades, and with the
                ticker of a whole exchange for ticker snapshots.
        """
        if dataset:
            named = dataset_named(dataset)
            if bool(period_seconds) != named.has_periods:
                raise InvalidRequest(f"period_seconds {period_seconds} does not go with dataset {dataset}")
            return cls(ticker, period_seconds, named)
        is_whole = not period_seconds and ticker.startswith(f"{ALL_SYMBOLS}.")
        return cls(ticker, period_seconds, TICKERS if is_whole else realtime_dataset(period_seconds))

    @classmethod
    def whole_exchange(cls, venue: str, dataset: Dataset) -> Series:
        """Return the series of a dataset that concerns a whole exchange."""
        return cls(f"{ALL_SYMBOLS}.{venue}", 0, dataset)

    @property
    def exchange(self) -> str:
        """The venue of the ticker."""
        return Instrument.parse(self.ticker).venue

    def encode(self) -> dict[str, Any]:
        """Return the fields that ``decode`` takes, by name; the dataset only if it has a code."""
        fields = {"ticker": self.ticker, "period_seconds": self.period_seconds}
        return {**fields, "dataset": self.dataset.code} if self.dataset.code else fields

    def __str__(self) -> str:
        return f"{self.dataset} of {self.ticker}{f', {self.period_seconds} s' if self.period_seconds else ''}"


class InstrumentKind(StrEnum):
    """Kind of an instrument: a swap is a future without expiry."""

    SPOT = "spot"
    SWAP = "swap"
    FUTURE = "future"
    OPTION = "option"

    @property
    def expires(self) -> bool:
        """Whether its instruments have an expiry."""
        return self in (InstrumentKind.FUTURE, InstrumentKind.OPTION)


class ListedInstrument(NamedTuple):
    """An instrument as its venue lists it.

    A field is None if the venue does not say.

    Attributes:
        active: Whether it is traded now. It may have history either way.
        base: Currency that is traded.
        quote: Currency it is priced in.
        exchange_id: The venue's own id.
        settle: Currency in which a derivative is settled.
        tick_size: Smallest step of a price, in the quote currency.
        lot_size: Smallest step of an amount, in the base currency, or in contracts of a derivative.
        contract_size: Amount of the base currency that a contract stands for; of an inverse one, of the quote currency.
        delisted_ns: Time at which trading ended, or will end, other than by expiry.
    """

    ticker: str
    active: bool
    kind: InstrumentKind | None = None
    base: str | None = None
    quote: str | None = None
    exchange_id: str | None = None
    settle: str | None = None
    tick_size: float | None = None
    lot_size: float | None = None
    contract_size: float | None = None
    expiry_ns: int | None = None
    listed_ns: int | None = None
    delisted_ns: int | None = None


class CandleOffer(NamedTuple):
    """Candles that an exchange offers, and how its answers to queries for them are made up.

    Attributes:
        period_seconds: Periods, ascending.
        call_candles: Largest number of candles in an answer; ``learnt`` from answers if it is lower than documented.
        newest_first: Learnt: a window with more candles is answered with its newest ones.
        excludes_since: Learnt: the candle at the start of a window is left out.
        excludes_until: Learnt: the candle at the end of a window is left out.
        volume_tolerance: Relative difference between the volume of a coarser candle and the sum of the finer ones that
            rounding explains; None if coarser candles are not known to be checksums.
    """

    period_seconds: tuple[int, ...]
    call_candles: int
    learnt: bool = False
    newest_first: bool = False
    excludes_since: bool = False
    excludes_until: bool = False
    volume_tolerance: float | None = None

    def __str__(self) -> str:
        texts = [f"{self.call_candles:,} candles a call{' (learnt)' if self.learnt else ''}"]
        texts += ["newest candles first (learnt)"] if self.newest_first else []
        texts += ["the start of a window is excluded (learnt)"] if self.excludes_since else []
        texts += ["the end of a window is excluded (learnt)"] if self.excludes_until else []
        return ", ".join(texts)


class InstrumentList(NamedTuple):
    """All instruments of a venue by ticker, and the time at which an ingestor received them from the exchange.

    Attributes:
        candles: None if the ingestor did not report it.
    """

    venue: str
    markets: tuple[ListedInstrument, ...]
    fetched_ns: int
    candles: CandleOffer | None = None

    def __repr__(self) -> str:
        active = sum(each.active for each in self.markets)
        return f"InstrumentList of {self.venue}: {len(self.markets):,} markets, {active:,} of them active"
