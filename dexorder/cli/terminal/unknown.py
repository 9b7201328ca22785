"""Refusal of tickers that are not on the exchange: a misspelt one would look like a market without rows or trades."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import dexorder
from dexorder.cli.terminal.known_tickers import remember
from dexorder.errors import RequestRefused, VenueUnknown
from dexorder_common.model.instrument import similar_symbols


async def refuse_unknown(client: dexorder.AsyncClient, ticker: str, period: str | int) -> None:
    """Raise RequestRefused if the exchange does not list a market and no data of it is stored.

    Raise VenueUnknown if no ingestor has reported the exchange's markets, so the check is impossible.
    """
    await _refuse_unless_stored(client, await _problem(client, ticker), ticker, period)


class Listings:
    """Markets of the exchanges as their ingestors have reported them, each exchange's list fetched once."""

    def __init__(self, client: dexorder.AsyncClient) -> None:
        self._client = client
        self._symbols: dict[str, asyncio.Task[list[str] | None]] = {}

    async def refuse_unknown(self, ticker: str, period: str | int) -> None:
        """Raise RequestRefused like the function of this name; return if no ingestor has reported the exchange."""
        symbol, _, venue = ticker.rpartition(".")
        if venue not in self._symbols:
            self._symbols[venue] = asyncio.create_task(self._fetch(venue))
        listed = await self._symbols[venue]
        if listed is not None:
            await _refuse_unless_stored(self._client, _problem_with(symbol, venue, listed), ticker, period)

    async def _fetch(self, venue: str) -> list[str] | None:
        try:
            return await _symbols(self._client, venue)
        except (VenueUnknown, RequestRefused):
            return None  # the relay itself reports the error of the exchange


async def refuse_unlisted(client: dexorder.AsyncClient, *tickers: str) -> None:
    """Raise RequestRefused if the exchange does not list one of the markets, as far as its ingestors have reported."""
    for ticker in tickers:
        with suppress(VenueUnknown):
            if problem := await _problem(client, ticker):
                raise RequestRefused(problem)


def refuse_misspelt(relay: str | None, *tickers: str) -> None:
    """Check markets without results, with a new client, outside an event loop.

    Raises:
        RequestRefused: The exchange does not list one of them.
        VenueUnknown: No ingestor has reported the exchange's markets, so the market cannot be checked.
    """

    async def refuse() -> None:
        async with dexorder.AsyncClient(relay) as client:
            for ticker in tickers:
                if problem := await _problem(client, ticker):
                    raise RequestRefused(problem)

    if tickers:
        asyncio.run(refuse())


async def _refuse_unless_stored(client: dexorder.AsyncClient, problem: str, ticker: str, period: str | int) -> None:
    if problem and not (await client.series.coverage(ticker, period)).known:
        raise RequestRefused(f"{problem}, and no data of it is stored")


async def _problem(client: dexorder.AsyncClient, ticker: str) -> str:
    """Return why a ticker seems to be misspelt; empty if it is listed."""
    symbol, _, venue = ticker.rpartition(".")
    return _problem_with(symbol, venue, await _symbols(client, venue))


async def _symbols(client: dexorder.AsyncClient, venue: str) -> list[str]:
    tickers = [each.ticker for each in (await client.markets(venue)).markets]
    remember(venue, tickers)
    return [each.removesuffix(f".{venue}") for each in tickers]


def _problem_with(symbol: str, venue: str, listed: list[str]) -> str:
    """Return why a symbol seems to be misspelt; empty if it is listed."""
    if symbol in listed:
        return ""
    near = similar_symbols(symbol, listed)
    meant = (
        f"did you mean {' or '.join(f'{each}.{venue}' for each in near)}?"
        if near
        else f"see `dexorder markets {venue}`"
    )
    return f"{f'{symbol}.{venue}'!r} is not a market of {venue} ({meant})"
