"""Generation of the tables and notes in docs/exchanges.md from the dialects; ``--check`` fails if they are stale.

The page holds each generated part between two comments, ``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from dexorder_ingestor.exchange.answers import MARKET
from dexorder_ingestor.exchange.dialect import Dialect, Remedy
from dexorder_ingestor.exchange.dialects import default, dialect_modules, dialect_of

PAGE = Path(__file__).with_name("exchanges.md")
OTHER = "any other"
_PART = re.compile(r"(<!-- ([a-z ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_REACTIONS = {Remedy.REPEAT: "repeat", Remedy.SLOW_DOWN: "slow down"}


def dialects() -> dict[str, Dialect]:
    """Return the dialects by the names of their exchanges, and the default one last."""
    known: list[Dialect] = [module.DIALECT for module in dialect_modules()]
    return {", ".join((each.ccxt, *each.twins)): each for each in known} | {OTHER: dialect_of(OTHER)}


def candle_rows() -> Iterator[list[str]]:
    """Yield the rows of the table of candles."""
    yield [
        "exchange",
        "history",
        "limit of a call",
        "window wider than the limit",
        "names its market",
        "rows in the answer",
        "absent from, after the close",
        "coarser candles are checksums",
        "quote volume",
        "number of trades",
    ]
    for name, dialect in dialects().items():
        facts = dialect.candles
        columns = facts.columns or facts.linear_columns or facts.inverse_columns or (None,) * 8
        from_trades = dialect.history == "trades"
        place = ".".join(map(str, facts.rows_at or ())).replace(MARKET, "<market>")
        limit = f"{facts.limit:,}{' candles, over several calls' if from_trades else ''}"
        rows = f"`{place}`" if place else "the answer itself"
        symbol = ".".join(map(str, facts.symbol_at or ()))
        named = "the key of the rows" if MARKET in (facts.rows_at or ()) else f"`{symbol}`" if symbol else "no"
        if facts.rows_at is None:
            rows = "counted if the answer is a list"
        if name == OTHER:
            limit = f"the smallest that ccxt gives, at most {default.MAX_UNVERIFIED_CANDLES:,}; else {limit}"
        yield [
            name,
            f"trades, {dialect.trades.page:,} a call" if from_trades else "candles",
            limit,
            "yes: returns the oldest" if facts.wide else "no",
            named,
            rows,
            f"{facts.publish_seconds:g} s",
            "no" if facts.volume_tolerance is None else "yes",
            *(_yes(from_trades or columns[place] is not None) for place in (6, 7)),
        ]


def trade_rows() -> Iterator[list[str]]:
    """Yield the rows of the table of trades."""
    yield ["exchange", "ids of trades in a market", "rule", "what it proves", "a query asks for", "older trades"]
    for name, dialect in dialects().items():
        series = dialect.trades
        start = "number" if series.from_number else "time"
        ids = "consecutive" if series.numbered else "ascending" if series.ascending else "in no order"
        yield [
            name,
            "not known" if name == OTHER else ids,
            series.rule.value,
            series.rule.proves,
            f"{series.page:,}" if series.has_rest else "nothing",
            f"by {start}" if series.by_time and series.has_rest else "none",
        ]


def error_rows() -> Iterator[list[str]]:
    """Yield the rows of the table of errors."""
    yield ["exchange", "code", "meaning", "reaction"]
    for name, dialect in dialects().items():
        for code, each in dialect.errors.healing.items():
            until = ", until the time in the answer" if dialect.errors.throttled_until else ""
            yield [name, f"`{code}`", each.meaning, _REACTIONS[each.remedy] + until]
    coded = [name for name, dialect in dialects().items() if dialect.errors.always_coded]
    yield [", ".join(coded), "none", "an answer without a code does not come from the exchange", "repeat"]
    yield ["all", "HTTP 5xx", "whatever the body", "repeat"]
    yield ["all", "HTTP 403, 404, 451", "refused", "`REFUSED_ATTEMPTS` attempts"]


def host_rows() -> Iterator[list[str]]:
    """Yield the rows of the table of other hosts."""
    yield ["exchange", "`other_hosts`", "source"]
    for name, dialect in dialects().items():
        hosts, source = dialect.quirks.other_hosts, dialect.quirks.hosts_source
        if hosts:
            text = ", ".join(f"{own}: [{', '.join(others)}]" for own, others in hosts.items())
            yield [name, f"`{{{text}}}`", source]
    yield [OTHER, "none known", ""]


def notes() -> str:
    """Return the docstrings of the dialects as sections."""

    def section(module: ModuleType) -> str:
        title, _, text = inspect.cleandoc(module.__doc__ or "").partition("\n")
        return f"### {title.removesuffix('.')}\n{text.strip()}\n"

    return "\n".join(map(section, (*dialect_modules(), default)))


def table(rows: Iterator[list[str]]) -> str:
    """Return rows as a table, the first of which is the header."""
    header, *others = rows
    lines = [header, ["---"] * len(header), *others]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(text: str) -> str:
    """Return the page with its generated parts.

    Raises:
        KeyError: A part has an unknown name.
    """
    parts = {
        "candles": table(candle_rows()),
        "trades": table(trade_rows()),
        "errors": table(error_rows()),
        "other hosts": table(host_rows()),
        "notes": notes(),
    }
    return _PART.sub(lambda found: f"{found[1]}{parts[found[2]]}{found[4]}", text)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    old = PAGE.read_text()
    new = written(old)
    if "--check" in sys.argv:
        if old != new:
            raise SystemExit("docs/exchanges.md is stale: python docs/write_exchanges.py")
        print("docs/exchanges.md is fresh")
    else:
        PAGE.write_text(new)
