"""Command line of ``dexorder udf``. The code of a command is in another module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dexorder.cli.terminal.options import Json, JsonLines, Relay, example

udf_app = typer.Typer(
    no_args_is_help=True, help="Users' functions (UDFs): on the stream, over a file, and the shipped ones."
)

Socket = Annotated[str, typer.Option(help="Path of a unix socket")]
Many = list[str] | None


@udf_app.command(epilog=example("dexorder udf run moving_average --option size=20 --input candles.parquet"))
def run(
    name: Annotated[str, typer.Argument(help="A shipped function; see `udf functions`", show_default=False)] = "",
    prog: Annotated[str, typer.Option(help="Program and arguments of the UDF: 'python my_udf.py'")] = "",
    socket: Socket = "",
    grpc: Annotated[str, typer.Option(help="host:port of a UDF that serves gRPC")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE; the same name again gives its next value; NAME is a flag")
    ] = None,
    source: Annotated[str, typer.Option("--input", help="FILE.parquet, .csv, .jsonl; - is JSON lines on stdin")] = "-",
    time: Annotated[str, typer.Option(help="Column of the time; default: open_time, time, timestamp or date")] = "",
    by: Annotated[
        list[str] | None,
        typer.Option(help="Column to group by; may be repeated; default: ticker, symbol, exchange and period"),
    ] = None,
    series: Annotated[str, typer.Option("--name", help="Name of the points")] = "ohlc",
    window: Annotated[str, typer.Option(help="Length of the batches of a UDF that wants batches: 90s, 5m, 1h")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest silence of the UDF, in seconds")] = 10.0,
    rows: Annotated[int, typer.Option(min=0, help="Number of points to print, without --json")] = 20,
    as_json: JsonLines = False,
) -> None:
    """Run a UDF over a file and print its output; the UDF's stderr goes to stderr."""
    from dexorder.cli.udf import commands as command
    from dexorder.udf.tables import PointMaker

    maker = PointMaker(time, by or (), series)
    command.run(
        name, prog, socket, grpc, option or (), source, maker, window, timeout=timeout, rows=rows, as_json=as_json
    )


@udf_app.command(epilog=example("dexorder udf serve moving_average --socket /run/udf.sock"))
def serve(
    name: Annotated[str, typer.Argument(help="A shipped function; see `udf functions`")],
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one session over stdin and stdout; the default")
    ] = False,
    socket: Socket = "",
    grpc: Annotated[str, typer.Option(help="host:port to serve gRPC on, without TLS")] = "",
) -> None:
    """Serve a shipped function to Kapacitor or to another host."""
    from dexorder.cli.udf import commands as command

    raise typer.Exit(command.serve(name, socket, grpc))


@udf_app.command(epilog=example("dexorder udf functions"))
def functions(as_json: Json = False) -> None:
    """List the shipped functions with their options."""
    from dexorder.cli.udf import commands as command

    command.functions(as_json)


@udf_app.command("list", epilog=example("dexorder udf list"))
def list_udfs(as_json: Json = False, relay: Relay = None) -> None:
    """List the UDFs on the stream, with their states."""
    from dexorder.cli.udf import registry as command

    command.list_udfs(as_json, relay)


@udf_app.command(
    epilog=example("dexorder udf start ema20 --program moving_average --ticker BTC/USDT.BINANCE --period 1m")
)
def start(
    name: Annotated[str, typer.Argument(help="Name; its output is the table trading.udf_NAME")],
    program: Annotated[str, typer.Option(help="Entry of the Spark host's file to run; default: NAME")] = "",
    option: Annotated[Many, typer.Option(help="NAME=VALUE of the UDF; may be repeated")] = None,
    table: Annotated[str, typer.Option(help="ohlc or ticks; default ohlc")] = "",
    ticker: Annotated[
        Many, typer.Option("--ticker", "-t", help="Only this market; may be repeated; default: all")
    ] = None,
    period: Annotated[str, typer.Option(help="Only candles of these periods, separated by commas: 1m,5m")] = "",
    since: Annotated[
        str, typer.Option("--since", "-s", help="now, earliest, -1h, 2024-01-31, ISO 8601; default now")
    ] = "",
    history: Annotated[bool, typer.Option("--history", help="Also candles that requests for history bring")] = False,
    window: Annotated[str, typer.Option(help="Length of the windows of a UDF that wants batches: 90s, 5m, 1h")] = "",
    topic: Annotated[str, typer.Option(help="Kafka topic that gets the output too")] = "",
    user: Annotated[str, typer.Option(help="User who gets an event for each point of the output")] = "",
    title: Annotated[str, typer.Option(help="First line of these events")] = "",
    file: Annotated[Path | None, typer.Option(help="YAML file with an entry of this name under udfs")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Forget state and position of earlier runs")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Longest wait until it runs, in seconds")] = 30.0,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """Start a UDF on the stream, which runs until it is stopped. With only its name: the one that is known under it."""
    from dexorder.cli.terminal.options import split_periods
    from dexorder.cli.udf import registry as command

    options: dict[str, list[str]] = {}
    for each in option or ():
        key, equals, value = each.partition("=")
        options.setdefault(key, []).extend([value] if equals else [])
    given: dict[str, Any] = {
        "program": program,
        "options": options,
        "input": _set(
            table=table,
            tickers=ticker,
            periods=split_periods(period),
            since=command.since_text(since),
            history=history,
            window=window,
        ),
        "output": _set(topic=topic, user_id=user, title=title),
    }
    code = command.start(name, _set(**given), file, anew=anew, timeout=timeout, as_json=as_json, relay=relay)
    raise typer.Exit(code)


@udf_app.command(epilog=example("dexorder udf stop ema20"))
def stop(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)], relay: Relay = None
) -> None:
    """Stop UDFs. Their rows, states and positions stay."""
    from dexorder.cli.udf import registry as command

    command.stop(names, relay)


@udf_app.command(epilog=example("dexorder udf logs ema20 --follow"))
def logs(
    name: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing lines until Ctrl-C")] = False,
    relay: Relay = None,
) -> None:
    """Print the last lines that a UDF has written to stderr."""
    from dexorder.cli.udf import registry as command

    command.logs(name, follow, relay)


def _set(**values: Any) -> dict[str, Any]:
    """Return the values that are given."""
    return {name: value for name, value in values.items() if value}
