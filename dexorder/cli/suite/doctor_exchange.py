"""``dexorder doctor --exchange``: the rules of an exchange, their proofs, and a measurement on one day.

The rules come from its dialect. The measurement needs a running suite that serves the exchange: a day of minutes is
fetched as any history, its proofs are counted, and its values are compared with the exchange's coarser candles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import typer

from dexorder.cli.suite.findings import Finding
from dexorder.client.blocking import Client
from dexorder.client.connection import relay_address
from dexorder.errors import DexorderError, HistoryError, HistoryNotFound, RelayUnreachable, VenueUnknown
from dexorder.supervisor.plan import EXCHANGES_FILE
from dexorder.supervisor.state import default_directory, registered_directories, running_suite
from dexorder_common.config import read_settings
from dexorder_common.exchanges import Exchange, load_exchanges
from dexorder_common.model.coverage import Coverage, CoverageKind
from dexorder_common.model.instrument import InstrumentList
from dexorder_common.model.periods import count_periods
from dexorder_common.model.proof import ProofKind, proofs_of
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import DAY_NS, iso, parse_time
from dexorder_ingestor.exchange.dialect import Dialect
from dexorder_ingestor.exchange.dialects import dialect_of

_PERIOD = "1m"
_KINDS = {
    ProofKind.CHECKSUM: "by coarser candles",
    ProofKind.TRADE_IDS: "by trade ids",
    ProofKind.ODDS: "by answers that agree",
    ProofKind.REFILL: "by two answers about trades",
}


def findings(exchange: str, ticker: str | None, day: str | None, relay: str | None, now_ns: int) -> Iterator[Finding]:
    """Yield the rules, then the measurement."""
    venue, dialect = _known(exchange, relay)
    yield from rules(dialect)
    start_ns = now_ns // DAY_NS * DAY_NS - DAY_NS if day is None else parse_time(day, "--day") // DAY_NS * DAY_NS
    span = TimeRange(start_ns, start_ns + DAY_NS)
    if span.end_ns > now_ns:
        raise typer.BadParameter(f"--day: {iso(start_ns)[:10]} has not ended yet; give a whole day of the past")
    try:
        with Client(relay) as client:
            yield from _measured(client, ticker or _market(client.markets(venue)), span)
    except (RelayUnreachable, VenueUnknown) as error:
        yield Finding(
            "measured", False, f"{error}; start a suite that serves {exchange}: `dexorder up --exchanges FILE`"
        )


def rules(dialect: Dialect) -> Iterator[Finding]:
    """Yield the rules of an exchange, from the facts that its dialect states."""
    candles, trades = dialect.candles, dialect.trades
    if dialect.history == "trades" and trades.numbered:
        rule = "candles are built from trades, which are numbered: a minute is empty if no number is missing around it"
    elif candles.volume_tolerance is not None:
        rule = "a minute is absent if the exchange's coarser candles add up without it, or enough answers agree"
    else:
        rule = "a minute is absent if enough answers agree; its coarser candles are not known to be checksums"
    yield Finding("absences", True, f"{rule}; a recent absence is provisional, and is queried again for a day")
    yield Finding("trades", True, f"{trades.rule.value}; this proves: {trades.rule.proves}")


def _exchanges_file(relay: str | None) -> Path:
    """Return the file of the suite on this machine whose relay is called, else the one in the settings."""
    from dexorder_relay.config import RelaySettings

    address = relay_address(relay)
    for directory in (default_directory(), *registered_directories()):
        if (suite := running_suite(directory)) is not None and suite.relay == address:
            return directory / EXCHANGES_FILE
    return read_settings(RelaySettings).exchanges


def _known(exchange: str, relay: str | None) -> tuple[str, Dialect]:
    """Return the venue of an exchange and its dialect.

    The venue is that of the exchanges file. A relay on another machine may have another file: the venue of an exchange
    of ccxt that this file lacks is its name in capitals, as in the shipped files.
    """
    try:
        venues: Mapping[str, Exchange] = load_exchanges(_exchanges_file(relay))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--exchange: the exchanges file can't be read: {error}") from None
    named = venues.get(exchange.upper())
    if named is not None:
        return exchange.upper(), dialect_of(named.ccxt)
    venue = next((name for name, each in venues.items() if each.ccxt == exchange), None)
    if venue is None:
        try:
            Exchange(ccxt=exchange)
        except ValueError:
            listed = ", ".join(venues)
            raise typer.BadParameter(
                f"--exchange: {exchange!r} is neither an exchange of ccxt nor a venue of the exchanges file ({listed})"
            ) from None
    return venue or exchange.upper(), dialect_of(exchange)


def _market(listed: InstrumentList) -> str:
    """Return the market that is measured: BTC/USDT if the exchange has it, else the first that is active."""
    active = [each.ticker for each in listed.markets if each.active]
    if not active:
        raise DexorderError(f"{listed.venue} lists no active market; give --ticker")
    return next((each for each in active if each.startswith("BTC/USDT.")), active[0])


def _measured(client: Client, ticker: str, span: TimeRange) -> Iterator[Finding]:
    name = f"{ticker} {_PERIOD}, {iso(span.start_ns)[:10]}"
    ends = span.start_ns, span.end_ns
    try:
        client.history(ticker, _PERIOD, *ends, progress=False)
    except HistoryNotFound:
        pass  # an empty day is an answer, too
    except HistoryError as error:
        yield Finding("history", False, f"{name}: {error}")
        return
    found = client.coverage(ticker, _PERIOD, *ends, detail=True)
    yield Finding("history", not _count(found, CoverageKind.MISSING, span), f"{name}: {_shares(found, span)}")
    yield Finding("proofs", True, _proofs(found, span))
    values = client.verify(ticker, _PERIOD, *ends).values
    if values is None or not values.cell_seconds:
        yield Finding("values", True, "not compared: the exchange has no coarser candles that check them")
        return
    text = f"{values.compared_periods:,} minutes were compared with coarser candles in {values.calls:,} calls, "
    text += f"{values.differing_cells:,} cells differ"
    if values.differing_cells:
        text += "; `dexorder verify --repair` fetches them again"
    yield Finding("values", not values.differing_cells and not values.errors, "; ".join([text, *values.errors]))


def _count(found: Coverage, kind: CoverageKind, span: TimeRange) -> int:
    return found.periods(found.whole(span.start_ns, span.end_ns))[kind]


def _shares(found: Coverage, span: TimeRange) -> str:
    texts = {
        CoverageKind.ROWS: "have a candle",
        CoverageKind.EMPTY: "are proven absent",
        CoverageKind.PROVISIONAL: "are absent so far",
        CoverageKind.MISSING: "are not known",
    }
    counts = {text: _count(found, kind, span) for kind, text in texts.items()}
    shares = ", ".join(f"{count:,} {text}" for text, count in counts.items() if count)
    return f"of {count_periods(span, 60):,} minutes {shares}"


def _proofs(found: Coverage, span: TimeRange) -> str:
    """Return how many minutes were proven by which means; the newest pages count."""
    by_kind: dict[ProofKind, list[TimeRange]] = {}
    for page in found.pages:
        for proof in proofs_of(page.evidence):
            if part := proof.span.intersect(span):
                by_kind.setdefault(proof.kind, []).append(part)
    minutes = Counter({kind: _minutes(parts) for kind, parts in by_kind.items()})
    return ", ".join(f"{count:,} minutes {_KINDS[kind]}" for kind, count in minutes.most_common()) or "none was given"


def _minutes(parts: Iterable[TimeRange]) -> int:
    return sum(count_periods(each, 60) for each in merge(parts))
