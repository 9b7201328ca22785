"""Command line of ``dexorder realtime``. The code of a command is in `realtime`, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from dexorder.cli.terminal.options import Json, Relay, Ticker, example, split_periods

realtime_app = typer.Typer(no_args_is_help=True, help="Realtime subscriptions: list, start and stop.")

Periods = Annotated[str, typer.Option("--period", help="Candles to build, separated by commas: 1m,5m")]


@realtime_app.command("list", epilog=example("dexorder realtime list"))
def list_subscriptions(
    client_id: Annotated[str, typer.Option(help="Only subscriptions of this client")] = "",
    ticker: Annotated[str, typer.Option("--ticker", "-t", help="Only subscriptions to this market")] = "",
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List the subscriptions, and the jobs that serve them."""
    from dexorder.cli.live import realtime as command

    command.list_subscriptions(client_id, ticker, as_json, relay)


@realtime_app.command(epilog=example("dexorder realtime start BTC/USDT.BINANCE --period 1m,5m --since -1h"))
def start(
    ticker: Ticker,
    period: Periods = "",
    trades: Annotated[bool, typer.Option(help="Store the trades")] = True,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", "-s", help="Complete from this time on: -1h, 2024-01-31, ISO 8601; default: from now on"
        ),
    ] = None,
    subscription_id: Annotated[
        str | None, typer.Option("--id", help="Id of the subscription; the same one again changes nothing")
    ] = None,
    client_id: Annotated[str, typer.Option(help="Name of the caller, for `realtime list`")] = "",
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """Start a subscription, which runs until it is stopped. Print its id."""
    from dexorder.cli.live import realtime as command

    command.start(
        ticker,
        split_periods(period),
        trades=trades,
        since=since,
        subscription_id=subscription_id,
        client_id=client_id,
        as_json=as_json,
        relay=relay,
    )


@realtime_app.command(epilog=example("dexorder realtime stop rt-5f2c1e"))
def stop(
    subscription_ids: Annotated[list[str], typer.Argument(metavar="SUBSCRIPTION...", show_default=False)],
    relay: Relay = None,
) -> None:
    """Stop subscriptions. What they have stored stays."""
    from dexorder.cli.live import realtime as command

    command.stop(subscription_ids, relay)
