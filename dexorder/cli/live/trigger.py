"""Commands ``dexorder trigger``: add, list, rm, tail, test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import typer

from dexorder.cli.terminal import output
from dexorder.cli.terminal.unknown import refuse_misspelt, refuse_unlisted
from dexorder.client.async_client import AsyncClient
from dexorder.client.blocking import Client
from dexorder.client.triggers import BacktestResult
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso
from dexorder_common.model.triggers import EventKind, RegisteredTrigger, TriggerEvent, Value

_HIDDEN = ("kind", "match_start", "match_end", "emitted_by", "period")
_SQL_SHOWN = 60


def add(
    trigger_id: str,
    sql: str,
    tickers: Sequence[str],
    parameters: Sequence[str],
    *,
    callback_id: str,
    client_id: str,
    user: str,
    priority: str,
    channels: Sequence[str],
    as_json: bool,
    relay: str | None,
) -> None:
    """Register a trigger."""
    text, values = read_sql(sql), read_parameters(parameters)

    async def add() -> bool:
        async with AsyncClient(relay) as client:
            await refuse_unlisted(client, *tickers)
            return await client.triggers.add(
                trigger_id,
                text,
                tickers,
                values,
                callback_id=callback_id,
                client_id=client_id,
                user_id=user,
                priority=priority,
                channels=channels,
            )

    new = asyncio.run(add())
    if as_json:
        output.print_json({"trigger_id": trigger_id, "status": "REGISTERED" if new else "ALREADY_REGISTERED"})
        return
    output.stdout().print(f"{trigger_id} is {'registered' if new else 'already registered'}")
    output.stderr().print(f"`dexorder trigger tail {trigger_id}` shows its events")


def list_triggers(client_id: str, ticker: str, as_json: bool, relay: str | None) -> None:
    """Print the triggers."""
    with Client(relay) as client:
        found = client.triggers.list(client_id, ticker=ticker)
    if ticker and not found:
        refuse_misspelt(relay, ticker)
    if as_json:
        output.print_json([each.as_json() for each in found])
        return
    columns = ("trigger", "state", "tickers", "fired", "last", "user", "condition")
    output.stdout().print(output.plain_table(columns, map(_cells, found)))


def remove(trigger_ids: Sequence[str], relay: str | None) -> None:
    """Remove triggers."""
    with Client(relay) as client:
        for each in trigger_ids:
            client.triggers.remove(each)
            output.stderr().print(f"{each} is removed")


def tail(trigger_id: str, callback_id: str, after: int, count: int | None, *, as_json: bool, relay: str | None) -> None:
    """Print events until Ctrl-C, or until ``count`` were printed."""
    out = output.stdout()
    with Client(relay, on_note=output.stderr().print) as client, suppress(KeyboardInterrupt):
        events = client.triggers.events(trigger_id, callback_id=callback_id, after=after)
        for each in islice(events, count):
            if as_json:
                output.print_json_line(each.as_json())
            else:
                out.print(_line(each))


def test(
    sql: str,
    tickers: Sequence[str],
    since: str,
    until: str,
    parameters: Sequence[str],
    *,
    chart: bool,
    plot: Path | None,
    rows: int,
    as_json: bool,
    relay: str | None,
) -> None:
    """Print where a trigger would have fired, as a table and on a chart of each market."""
    if plot is not None and plot.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"--plot {plot}: unknown extension; use .html")
    with Client(relay) as client:
        result = client.triggers.test(read_sql(sql), tickers, since, until, read_parameters(parameters))
        refuse_misspelt(relay, *(each.ticker for each in result.markets if not each.rows))
        if as_json:
            output.print_json(as_json_value(result))
        else:
            _print_result(client, result, chart=chart, rows=rows)
        if plot is not None:
            _plot(client, result, tickers[0], plot)


def as_json_value(result: BacktestResult) -> dict[str, object]:
    """Return the fields of ``--json``."""
    return {
        "start": iso(result.start_ns),
        "end": iso(result.end_ns),
        "period_seconds": result.period_seconds,
        "markets": [
            {"ticker": m.ticker, "rows": m.rows, "firings": m.firings, "suspended": m.suspended or None}
            for m in result.markets
        ],
        "events": [each.as_json() for each in result.events],
    }


def _print_result(client: Client, result: BacktestResult, *, chart: bool, rows: int) -> None:
    out = output.stdout()
    of = "trades" if not result.period_seconds else f"candles of {PERIODS[result.period_seconds]}"
    for market in result.markets:
        own = [each for each in result.events if each.ticker == market.ticker]
        if rows and own:
            names = [name for name, _ in own[0].columns]
            out.print(output.plain_table(("fires at", "match", *names), _event_rows(own[:rows])))
            if len(own) > rows:
                out.print(f"... {len(own) - rows:,} more")
        if chart and result.period_seconds and market.rows:
            from dexorder.charts.text import candle_chart

            stored = client.rows.stored(market.ticker, result.period_seconds, result.start_ns, result.end_ns)
            marks = [each.time_ns for each in own if each.kind is EventKind.FIRED]
            out.print(candle_chart(stored, width=min(out.width, 110), marks_ns=marks))
        out.print(f"{market.ticker}: {market.firings:,} firings in {market.rows:,} stored {of}")
        if market.suspended:
            out.print(f"{market.ticker}: it would have been suspended: {market.suspended}")


def _plot(client: Client, result: BacktestResult, ticker: str, file: Path) -> None:
    from dexorder.charts.html import write_html

    if not result.period_seconds:
        raise typer.BadParameter("--plot needs a trigger on candles")
    stored = client.rows.stored(ticker, result.period_seconds, result.start_ns, result.end_ns)
    if not stored.num_rows:
        output.stderr().print(f"{ticker} has no stored candles in the range; no chart was written")
        return
    write_html(stored, file, marks_ns=[each.time_ns for each in result.events if each.ticker == ticker])
    output.stderr().print(f"chart: {file}")


def read_sql(text: str) -> str:
    """Return the SQL of an argument: the text itself, the content of a file behind ``@``, or stdin for ``-``."""
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except OSError as error:
        raise typer.BadParameter(f"{text[1:]}: {error.strerror}") from None


def read_parameters(entries: Iterable[str]) -> dict[str, str]:
    """Return the parameters in NAME=VALUE entries."""
    found = {}
    for each in entries:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"--set {each!r} is not NAME=VALUE, for example fire=level")
        found[name.strip()] = value.strip()
    return found


def _cells(each: RegisteredTrigger) -> tuple[str, ...]:
    trigger = each.trigger
    first, *more = trigger.tickers
    sql = " ".join(trigger.sql.split())
    return (
        trigger.trigger_id,
        each.state.name.lower() + (f": {each.reason}" if each.reason else ""),
        f"{first} +{len(more)}" if more else first,
        f"{each.firings:,}",
        iso(each.last_fired_ns) if each.last_fired_ns else "-",
        trigger.alert.user_id if trigger.alert else "-",
        sql if len(sql) <= _SQL_SHOWN else f"{sql[: _SQL_SHOWN - 3]}...",
    )


def _line(each: TriggerEvent) -> str:
    if each.kind is not EventKind.FIRED:
        return f"{iso(each.time_ns)}  {each.trigger_id} {each.kind.name.lower()}: {each.context.get('reason', '')}"
    names = [name for name, _ in each.columns]
    rows = "; ".join(", ".join(f"{n}={_text(v)}" for n, v in zip(names, row, strict=True)) for row in each.rows)
    further = "".join(f"  {name}={value}" for name, value in each.context.items() if name not in _HIDDEN)
    resolved = " resolved" if each.context.get("kind") == "resolved" else ""
    return f"{iso(each.time_ns)}  {each.trigger_id}{resolved}  {each.ticker}  {rows}{further}"


def _event_rows(events: Sequence[TriggerEvent]) -> Iterable[tuple[str, ...]]:
    for each in events:
        start = each.context.get("match_start")
        match = iso(int(start)) if start and start.isdigit() else ""
        for row in each.rows:
            yield (iso(each.time_ns), match, *map(_text, row))


def _text(value: Value) -> str:
    if value is None:
        return "NULL"
    return f"{value:g}" if isinstance(value, float) else str(value)
