"""Command ``markets``: the instruments of an exchange; and the tickers that a pattern stands for."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import dexorder
from dexorder.cli.terminal import output
from dexorder.cli.terminal.known_tickers import remember
from dexorder.errors import RequestRefused
from dexorder_common.model.instrument import InstrumentList, ListedInstrument
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso

_COLUMNS = ("ticker", "active", "kind", "tick", "lot", "expiry")
_DATE = len("2024-01-31")


def markets(venue: str, text: str, names_only: bool, as_json: bool, relay: str | None) -> None:
    """Print the instruments with ``text`` in their ticker, ignoring case."""
    with dexorder.Client(relay) as client:
        found = client.markets(venue)
    remember(venue, (each.ticker for each in found.markets))
    listed = [each for each in found.markets if text.lower() in each.ticker.lower()]
    if as_json:
        output.print_json(_as_json(found, listed))
        return
    if names_only:
        for each in listed:
            output.stdout().print(each.ticker)
        return
    output.stdout().print(output.plain_table(_COLUMNS, map(_cells, listed)))
    err = output.stderr()
    if found.candles:
        periods = " ".join(PERIODS[each] for each in found.candles.period_seconds)
        err.print(f"{found.venue}: {found.candles}; candles of {periods}")
    err.print(f"{len(listed):,} of {len(found.markets):,} markets, fetched {iso(found.fetched_ns)}")


def is_pattern(ticker: str) -> bool:
    """Return whether a ticker stands for several: ``*/USDT.BINANCE``."""
    return "*" in ticker


def matching_tickers(tickers: Sequence[str], relay: str | None) -> tuple[str, ...]:
    """Return the tickers, each pattern replaced by the active markets of its exchange that it matches.

    Raises:
        RequestRefused: A pattern matches no market, or lacks an exchange after its last dot.
        VenueUnknown: No ingestor has reported the exchange's markets.
    """
    found: list[str] = []
    with dexorder.Client(relay) as client:
        for ticker in tickers:
            if not is_pattern(ticker):
                found.append(ticker)
                continue
            _, dot, venue = ticker.rpartition(".")
            if not dot or is_pattern(venue):
                raise RequestRefused(f"{ticker!r} names no exchange after its last dot, for example */USDT.BINANCE")
            listed = [each.ticker for each in client.markets(venue).markets if each.active]
            matching = [each for each in listed if fnmatchcase(each, ticker.replace("[", "[[]"))]
            if not matching:
                raise RequestRefused(f"{ticker!r} matches none of the {len(listed):,} active markets of {venue}")
            found += matching
    return tuple(dict.fromkeys(found))


def _as_json(found: InstrumentList, listed: Sequence[ListedInstrument]) -> dict[str, object]:
    return {
        "venue": found.venue,
        "fetched_at": iso(found.fetched_ns),
        "candles": found.candles._asdict() if found.candles else None,
        "markets": [each._asdict() for each in listed],
    }


def _cells(each: ListedInstrument) -> tuple[str, ...]:
    """Return a row that is so narrow that in 80 columns only long tickers are folded."""
    return (
        each.ticker,
        "yes" if each.active else "no",
        each.kind or "",
        _number(each.tick_size),
        _number(each.lot_size),
        "" if each.expiry_ns is None else iso(each.expiry_ns)[:_DATE],
    )


def _number(size: float | None) -> str:
    """Return a step in few characters: ``1e-08`` instead of ``0.00000001``."""
    return "" if size is None else f"{size:.12g}"
