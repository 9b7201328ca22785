"""``dexorder markets``: what an exchange has, as its ingestors reported it."""

from __future__ import annotations

from dexorder.cli import output
from dexorder.client import Client
from services.common.model.times import iso


def run(venue: str, text: str, names_only: bool, as_json: bool, relay: str | None) -> None:
    """Print the markets whose ticker holds ``text`` in either case; with ``names_only`` as ``--file`` takes them."""
    with Client(relay) as client:
        found = client.markets(venue)
    markets = [market for market in found.markets if text.lower() in market.ticker.lower()]
    if as_json:
        listed = [market._asdict() for market in markets]
        output.print_json({"venue": found.venue, "fetched_at": iso(found.fetched_ns), "markets": listed})
        return
    out = output.stdout()
    if names_only:
        for market in markets:
            out.print(market.ticker, markup=False)
        return
    cells = [(m.ticker, "yes" if m.active else "no", m.type, m.base, m.quote) for m in markets]
    out.print(output.plain_table(("ticker", "active", "type", "base", "quote"), cells))
    output.stderr().print(f"{len(markets):,} of {len(found.markets):,} markets, fetched {iso(found.fetched_ns)}")
