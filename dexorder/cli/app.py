"""Which commands there are. What they do lies beside this file; each is imported when it is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dexorder.cli.events_app import events_app
from dexorder.cli.reporting import Json, reported

app = typer.Typer(
    name="dexorder",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Ask for a market's history once; get complete, verified rows in Iceberg and one notification.",
)
requests_app = typer.Typer(no_args_is_help=True, help="Look up and end requests.")
app.add_typer(requests_app, name="requests")
app.add_typer(events_app, name="events")

Relay = Annotated[str | None, typer.Option(help="host:port of the relay; default DEXORDER_RELAY, else 127.0.0.1:50051")]
Ticker = Annotated[str, typer.Argument(help="SYMBOL.VENUE, for example BTC/USDT.BINANCE")]
Period = Annotated[str, typer.Argument(help="1m, 1h, 1d ... or seconds")]
Since = Annotated[str | None, typer.Option(help="ISO 8601, UTC without a zone; floored to the period")]
Until = Annotated[str | None, typer.Option(help="The same, exclusive")]
Dir = Annotated[
    Path | None, typer.Option("--dir", help="The suite's folder; default DEXORDER_DIR, else ./dexorder-data")
]
BasePort = Annotated[int | None, typer.Option(help="The suite's ports lie from here on instead of at the usual ones")]


@app.command()
def up(
    directory: Dir = None,
    base_port: BasePort = None,
    only: Annotated[str, typer.Option(help="Start only these parts, a comma list")] = "",
    exchanges: Annotated[Path | None, typer.Option(help="Exchanges file; default: the simulated one as SIM")] = None,
    recorded: Annotated[list[str] | None, typer.Option(help="FILE=SYMBOL served by the simulated exchange")] = None,
    kafka: Annotated[str, typer.Option(help="host:port of a Kafka of yours, instead of the embedded one")] = "",
    quiet: Annotated[bool, typer.Option(help="Print only errors")] = False,
) -> None:
    """Run the whole suite on this machine until Ctrl-C."""
    from dexorder.cli import suite as command

    with reported():
        command.up(directory, base_port, only, exchanges, recorded or [], kafka, quiet)


@app.command()
def history(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TICKER... PERIOD",
            show_default=False,
            help="SYMBOL.VENUE, for example BTC/USDT.BINANCE, then 1m, 1h, 1d ... or seconds; with --resume: the run",
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="ISO 8601, UTC without a zone; floored to the period")] = None,
    until: Annotated[str | None, typer.Option(help="The same, exclusive")] = None,
    file: Annotated[Path | None, typer.Option(help="Tickers, one a line, # for comments; - is stdin")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N candles")] = None,
    as_json: Json = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch all of it from the exchange again, whatever the table has")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the rows to FILE.parquet or FILE.csv; of many tickers also to a folder")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write an interactive chart to FILE.html")] = None,
    chart: Annotated[bool, typer.Option(help="Draw the candles in the terminal")] = False,
    rows: Annotated[int, typer.Option(min=0, help="How many rows to print")] = 20,
    quiet: Annotated[bool, typer.Option(help="No progress")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Stop waiting after so many seconds")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Of many tickers, so many at a time")] = 16,
    request_id: Annotated[str | None, typer.Option(help="Repeat or rejoin the request with this id")] = None,
    client_id: Annotated[str, typer.Option(help="Who asks; for `requests list`")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last run that was broken off")] = False,
    state: Annotated[Path | None, typer.Option(help="Record the run in this file, or resume the one in it")] = None,
    relay: Relay = None,
) -> None:
    """Fetch candles into Iceberg, wait for the notification, read them back."""
    from dexorder.cli import history as command
    from dexorder.run_store import RunStore
    from dexorder.runs import Shown

    store = RunStore(state.absolute() if state is not None else None)
    given = words or []
    with reported():
        try:
            if resume:
                own = (since, until, file, limit, out, plot, request_id)
                flags = (as_json, chart, refresh, client_id)
                if len(given) > 1 or any(flags) or any(value is not None for value in own):
                    raise ValueError(
                        "--resume goes on as the run began: only its id and --relay, --state, --timeout, "
                        "--quiet and --parallel may be given with it"
                    )
                asked = store.load(*given)
                asked = replace(asked, relay=relay or asked.relay)
            else:
                shown = Shown(as_json=as_json, out=out, plot=plot, chart=chart, rows=rows)
                asked = command.new_run(
                    given,
                    file,
                    since,
                    until,
                    shown,
                    limit=limit,
                    request_id=request_id,
                    client_id=client_id,
                    refresh=refresh,
                    relay=relay,
                )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        raise typer.Exit(command.run(asked, store, timeout=timeout, quiet=quiet, parallel=parallel))


@app.command()
def markets(
    venue: Annotated[str, typer.Argument(help="The part of a ticker behind its last dot, for example BINANCE")],
    text: Annotated[str, typer.Option("--filter", help="Only tickers that hold this")] = "",
    tickers: Annotated[
        bool, typer.Option("--tickers", help="Only tickers, one a line, as history --file takes")
    ] = False,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List an exchange's markets, as its ingestors last reported them."""
    from dexorder.cli import markets as command

    with reported():
        command.run(venue, text, tickers, as_json, relay)


@app.command()
def coverage(
    ticker: Ticker,
    period: Period,
    since: Since = None,
    until: Until = None,
    detail: Annotated[bool, typer.Option("--detail", help="Also the pages that the ranges rest on")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line")] = False,
    relay: Relay = None,
) -> None:
    """Show what the table is known to hold of a market, and the holes between."""
    from dexorder.cli import coverage as command

    with reported():
        command.run(ticker, period, since, until, detail, as_json, relay)


@app.command()
def verify(
    ticker: Ticker,
    period: Period,
    since: Since = None,
    until: Until = None,
    repair: Annotated[bool, typer.Option("--repair", help="Fetch again what is lost, and wait for it")] = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option(help="No progress")] = False,
    relay: Relay = None,
) -> None:
    """Check the table's rows against what coverage claims; exit code 0 only if all is well in the end."""
    from dexorder.cli import verify as command

    with reported():
        code = command.run(ticker, period, since, until, repair=repair, as_json=as_json, quiet=quiet, relay=relay)
        raise typer.Exit(code)


@app.command()
def maintain(
    spark: Annotated[
        str | None,
        typer.Option(help="host:port of Spark's driver; default DEXORDER_SPARK_ADDRESS, else 127.0.0.1:50055"),
    ] = None,
    table: Annotated[list[str] | None, typer.Option(help="Only this one, for example trading.ohlc; may repeat")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done")] = False,
    as_json: Json = False,
) -> None:
    """Compact the tables and expire old snapshots now; Spark also does so by itself."""
    from dexorder.cli import suite as command

    with reported():
        command.maintain(spark, table or (), dry_run, as_json)


@app.command()
def gateway(
    pixy_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kafka-Pixy's YAML file; default DEXORDER_PIXY_CONFIG")
    ] = None,
) -> None:
    """Run the gateway alone, as DEXORDER_GATEWAY_ and Kafka-Pixy's file tell it, until Ctrl-C."""
    from dexorder.cli import suite as command

    with reported():
        command.gateway(pixy_config)


@app.command()
def status(directory: Dir = None, relay: Relay = None, as_json: Json = False) -> None:
    """Show every part of the local suite; exit code 0 only when all are ready."""
    from dexorder.cli import suite as command

    with reported():
        raise typer.Exit(command.status(directory, relay, as_json))


@app.command()
def doctor(directory: Dir = None, base_port: BasePort = None, as_json: Json = False) -> None:
    """Check that this machine can run the suite; each failing line says what to do."""
    from dexorder.cli import doctor as command

    with reported():
        raise typer.Exit(command.run(directory, base_port, as_json))


@app.command()
def backup(archive: Annotated[Path, typer.Argument(help="FILE.tar.gz to write")], directory: Dir = None) -> None:
    """Copy all state of a stopped local suite into one file."""
    from dexorder.cli import suite as command

    with reported():
        command.backup(directory, archive)


@app.command()
def restore(archive: Annotated[Path, typer.Argument(help="FILE.tar.gz that `dexorder backup` wrote")]) -> None:
    """Bring a backup back to the folder it came from, which must be empty or gone."""
    from dexorder.cli import suite as command

    with reported():
        command.restore(archive)


@requests_app.command("list")
def list_requests(
    client_id: Annotated[str, typer.Option(help="Only this client's")] = "",
    state: Annotated[str, typer.Option(help="Only those QUEUED, RUNNING or FINISHED")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many")] = 20,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """The newest requests."""
    from dexorder.cli import requests as command
    from dexorder.records import State

    try:
        wanted = State(state.upper()) if state else None
    except ValueError:
        raise typer.BadParameter(f"--state {state} is none of QUEUED, RUNNING, FINISHED") from None
    with reported():
        command.list_requests(client_id, wanted, limit, as_json, relay)


@requests_app.command("show")
def show_request(request_id: str, as_json: Json = False, relay: Relay = None) -> None:
    """One request's record."""
    from dexorder.cli import requests as command

    with reported():
        command.show_request(request_id, as_json, relay)


@requests_app.command("cancel")
def cancel_request(request_id: str, as_json: Json = False, relay: Relay = None) -> None:
    """End a request; one that had ended keeps its status."""
    from dexorder.cli import requests as command

    with reported():
        command.cancel_request(request_id, as_json, relay)
