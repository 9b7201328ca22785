"""Commands ``dexorder trigger``: add, register, list, edit, pause, resume, rm, tail, test."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dexorder
from dexorder.cli.terminal import output
from dexorder.cli.terminal.options import Count, Json, JsonLines, Relay, example
from dexorder.cli.terminal.unknown import refuse_misspelt, refuse_unlisted
from dexorder.client.inputs import read_cursor
from dexorder.errors import RequestRefused
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso
from dexorder_common.model.triggers import EventKind, RegisteredTrigger, Trigger, TriggerEvent, Value

if TYPE_CHECKING:
    from dexorder.client.triggers import BacktestResult

_HIDDEN = ("kind", "match_start", "match_end", "emitted_by", "period")
_SQL_SHOWN = 60

app = typer.Typer(rich_markup_mode=None)

Sql = Annotated[str, typer.Argument(help="SQL text, or @FILE, or - for stdin", show_default=False)]
Tickers = Annotated[
    list[str], typer.Option("--ticker", "-t", help="Market, for example BTC/USDT.BINANCE; may be repeated")
]
Parameter = Annotated[
    list[str] | None,
    typer.Option("--set", "--param", "-p", metavar="NAME=VALUE", help="Parameter, as fire=level, or value of :NAME"),
]


@app.command(
    epilog=example(
        "dexorder trigger add high 'SELECT `close` FROM ohlc WHERE `close` > 100000' --ticker BTC/USDT.BINANCE"
    )
)
def add(
    trigger_id: Annotated[str, typer.Argument(help="Id; the same one again with the same values changes nothing")],
    sql: Sql,
    tickers: Tickers,
    parameter: Parameter = None,
    callback_id: Annotated[str, typer.Option("--callback", help="Name to read the events of several triggers")] = "",
    client_id: Annotated[str, typer.Option(help="Name of the caller, for `trigger list`")] = "",
    user: Annotated[str, typer.Option(help="Also send each firing to this user")] = "",
    priority: Annotated[str, typer.Option(help="With --user: INFORMATIONAL, NORMAL or CRITICAL")] = "NORMAL",
    channel: Annotated[
        list[str] | None, typer.Option(help="With --user: EMAIL, PUSH, ...; may be repeated, in order")
    ] = None,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """Register a trigger, which is evaluated until it is removed."""
    if channel and not user:
        raise typer.BadParameter("--channel goes with --user")
    text, values = read_sql(sql), read_parameters(parameter or ())

    async def added() -> bool:
        async with dexorder.AsyncClient(relay) as client:
            await refuse_unlisted(client, *tickers)
            return await client.triggers.add(
                trigger_id,
                text,
                tickers,
                values,
                callback_id=callback_id,
                client_id=client_id,
                user_id=user,
                priority=priority.upper(),
                channels=[each.upper() for each in channel or ()],
            )

    new = asyncio.run(added())
    if as_json:
        output.print_json({"trigger_id": trigger_id, "status": "REGISTERED" if new else "ALREADY_REGISTERED"})
        return
    output.stdout().print(f"{trigger_id} is {'registered' if new else 'already registered'}")
    output.stderr().print(f"`dexorder trigger tail {trigger_id}` shows its events")


@app.command(epilog=example("dexorder trigger register --file alerts.jsonl"))
def register(
    file: Annotated[Path, typer.Option("--file", help="File with a JSON object a line, or - for stdin")],
    as_json: JsonLines = False,
    relay: Relay = None,
) -> None:
    """Register many triggers, a thousand in a call. Repeating the command registers the missing ones.

    A line has trigger_id, sql and tickers, and may have parameters, callback_id, client_id, user_id, priority and
    channels: the arguments of `trigger add`. Refused lines are named; all other lines are registered.
    """
    lines = sys.stdin.read() if str(file) == "-" else _text_of(file)
    triggers = [_read_line(number, line) for number, line in enumerate(lines.splitlines(), 1) if line.strip()]
    with dexorder.Client(relay) as client:
        answers = client.triggers.add_many(triggers)
    for each in answers:
        if as_json:
            output.print_json_line(
                {"trigger_id": each.trigger_id, "status": each.status, "reason": each.reason or None}
            )
        elif not each.is_registered:
            output.stderr().print(f"{each.trigger_id}: {each.status}: {each.reason}")
    if not as_json:
        counts = Counter(each.status for each in answers)
        output.stdout().print(", ".join(f"{count:,} {status}" for status, count in counts.items()) or "no triggers")
    if not all(each.is_registered for each in answers):
        raise typer.Exit(1)


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from None


def _read_line(number: int, line: str) -> Trigger:
    """Return the trigger of a line; an error names the line."""
    from dexorder.client.triggers import new_trigger

    try:
        return new_trigger(**json.loads(line))
    except (ValueError, TypeError, AttributeError, RequestRefused) as error:
        raise typer.BadParameter(f"--file: line {number} is not a trigger: {error}") from None


@app.command("list", epilog=example("dexorder trigger list"))
def list_triggers(
    client_id: Annotated[str, typer.Option(help="Only triggers of this client")] = "",
    ticker: Annotated[str, typer.Option("--ticker", "-t", help="Only triggers that watch this market")] = "",
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List the triggers and their states."""
    with dexorder.Client(relay) as client:
        found = client.triggers.list(client_id, ticker=ticker)
    if ticker and not found:
        refuse_misspelt(relay, ticker)
    if as_json:
        output.print_json([each.as_json() for each in found])
        return
    columns = ("trigger", "state", "tickers", "fired", "last", "user", "condition")
    output.stdout().print(output.plain_table(columns, map(_cells, found)))


@app.command(epilog=example("dexorder trigger edit high --param cooldown=600"))
def edit(
    trigger_id: Annotated[str, typer.Argument(metavar="TRIGGER", show_default=False)],
    text: Annotated[str | None, typer.Option("--text", help="New SQL text, or @FILE, or - for stdin")] = None,
    parameter: Parameter = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Parameter to remove; may be repeated")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Begin without the state: any change is possible")] = False,
    relay: Relay = None,
) -> None:
    """Change the text or parameters of a trigger, which keeps its state. Omitted options keep their values."""
    sql = None if text is None else read_sql(text)
    with dexorder.Client(relay) as client:
        answer = client.triggers.edit(
            trigger_id, sql, read_parameters(parameter or ()), removed=unset or (), reset=reset
        )
    output.stdout().print(f"{trigger_id} has revision {answer.revision}")
    if not answer.taken:
        output.stderr().print("the pipeline has not taken it yet; until then it evaluates the text of before")


@app.command(epilog=example("dexorder trigger pause high"))
def pause(
    trigger_ids: Annotated[list[str], typer.Argument(metavar="TRIGGER...", show_default=False)], relay: Relay = None
) -> None:
    """Pause triggers: they take rows, keep their state, and do not fire."""
    with dexorder.Client(relay) as client:
        for each in trigger_ids:
            client.triggers.pause(each)
            output.stderr().print(f"{each} is paused")


@app.command(epilog=example("dexorder trigger resume high"))
def resume(
    trigger_ids: Annotated[list[str], typer.Argument(metavar="TRIGGER...", show_default=False)], relay: Relay = None
) -> None:
    """Resume paused triggers. Conditions that came true during the pause do not fire."""
    with dexorder.Client(relay) as client:
        for each in trigger_ids:
            client.triggers.resume(each)
            output.stderr().print(f"{each} runs")


@app.command("rm", epilog=example("dexorder trigger rm high"))
def remove(
    trigger_ids: Annotated[list[str], typer.Argument(metavar="TRIGGER...", show_default=False)], relay: Relay = None
) -> None:
    """Remove triggers. Their events are kept."""
    with dexorder.Client(relay) as client:
        for each in trigger_ids:
            client.triggers.remove(each)
            output.stderr().print(f"{each} is removed")


@app.command(epilog=example("dexorder trigger tail high --json"))
def tail(
    trigger_id: Annotated[str, typer.Argument(help="Id of the trigger; not with --callback")] = "",
    callback_id: Annotated[str, typer.Option("--callback", help="Events of all triggers with this callback")] = "",
    after: Annotated[str, typer.Option(help="Cursor of the last event that is known, as --json prints it")] = "",
    count: Count = None,
    as_json: JsonLines = False,
    relay: Relay = None,
) -> None:
    """Print the events of a trigger, stored ones and new ones, until Ctrl-C."""
    if bool(trigger_id) == bool(callback_id):
        raise typer.BadParameter("name either a trigger or --callback")
    out = output.stdout()
    with dexorder.Client(relay, on_note=output.stderr().print) as client, suppress(KeyboardInterrupt):
        events = client.triggers.events(trigger_id, callback_id=callback_id, after=read_cursor(after))
        for each in islice(events, count):
            if as_json:
                output.print_json_line(each.as_json())
            else:
                out.print(_line(each))


@app.command(epilog=example("dexorder trigger test @high.sql --ticker BTC/USDT.BINANCE --since -7d"))
def test(
    sql: Sql,
    tickers: Tickers,
    since: Annotated[str, typer.Option("--since", "-s", help="Start of the range: -7d, 2024-01-31, ISO 8601")] = "-1d",
    until: Annotated[str, typer.Option("--until", "-u", help="Like --since; exclusive")] = "now",
    parameter: Parameter = None,
    chart: Annotated[bool, typer.Option(help="Draw the candles, and mark those at which it fires")] = True,
    plot: Annotated[Path | None, typer.Option(help="FILE.html for an interactive chart; of the first market")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of events to print")] = 20,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """Run a trigger over the stored candles or trades of a past range, and show where it would have fired."""
    if plot is not None and plot.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"--plot {plot}: unknown extension; use .html")
    with dexorder.Client(relay) as client:
        result = client.triggers.test(read_sql(sql), tickers, since, until, read_parameters(parameter or ()))
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


def _print_result(client: dexorder.Client, result: BacktestResult, *, chart: bool, rows: int) -> None:
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


def _plot(client: dexorder.Client, result: BacktestResult, ticker: str, file: Path) -> None:
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
    return _text_of(Path(text[1:]))


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
