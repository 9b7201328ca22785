"""Command line of ``dexorder trigger``. The code of a command is in `trigger`, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dexorder.cli.terminal.options import Count, Json, JsonLines, Relay, example

trigger_app = typer.Typer(no_args_is_help=True, help="Triggers: conditions and patterns on live data, in Flink's SQL.")

Sql = Annotated[str, typer.Argument(help="SQL text, or @FILE, or - for stdin", show_default=False)]
Tickers = Annotated[
    list[str], typer.Option("--ticker", "-t", help="Market, for example BTC/USDT.BINANCE; may be repeated")
]
Parameter = Annotated[
    list[str] | None, typer.Option("--set", "-p", metavar="NAME=VALUE", help="Parameter, for example fire=level")
]


@trigger_app.command(
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
    from dexorder.cli.live import trigger as command

    if channel and not user:
        raise typer.BadParameter("--channel goes with --user")
    command.add(
        trigger_id,
        sql,
        tickers,
        parameter or [],
        callback_id=callback_id,
        client_id=client_id,
        user=user,
        priority=priority.upper(),
        channels=[each.upper() for each in channel or []],
        as_json=as_json,
        relay=relay,
    )


@trigger_app.command("list", epilog=example("dexorder trigger list"))
def list_triggers(
    client_id: Annotated[str, typer.Option(help="Only triggers of this client")] = "",
    ticker: Annotated[str, typer.Option("--ticker", "-t", help="Only triggers that watch this market")] = "",
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List the triggers and their states."""
    from dexorder.cli.live import trigger as command

    command.list_triggers(client_id, ticker, as_json, relay)


@trigger_app.command("rm", epilog=example("dexorder trigger rm high"))
def remove(
    trigger_ids: Annotated[list[str], typer.Argument(metavar="TRIGGER...", show_default=False)], relay: Relay = None
) -> None:
    """Remove triggers. Their events are kept."""
    from dexorder.cli.live import trigger as command

    command.remove(trigger_ids, relay)


@trigger_app.command(epilog=example("dexorder trigger tail high --json"))
def tail(
    trigger_id: Annotated[str, typer.Argument(help="Id of the trigger; not with --callback")] = "",
    callback_id: Annotated[str, typer.Option("--callback", help="Events of all triggers with this callback")] = "",
    after: Annotated[int, typer.Option(min=0, help="Cursor of the last event that is known")] = 0,
    count: Count = None,
    as_json: JsonLines = False,
    relay: Relay = None,
) -> None:
    """Print the events of a trigger, stored ones and new ones, until Ctrl-C."""
    from dexorder.cli.live import trigger as command

    if bool(trigger_id) == bool(callback_id):
        raise typer.BadParameter("name either a trigger or --callback")
    command.tail(trigger_id, callback_id, after, count, as_json=as_json, relay=relay)


@trigger_app.command(epilog=example("dexorder trigger test @high.sql --ticker BTC/USDT.BINANCE --since -7d"))
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
    from dexorder.cli.live import trigger as command

    command.test(
        sql, tickers, since, until, parameter or [], chart=chart, plot=plot, rows=rows, as_json=as_json, relay=relay
    )
