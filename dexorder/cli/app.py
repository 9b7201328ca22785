"""Command line of ``dexorder``. The code of a command is in a module beside this one, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dexorder.cli.events.app import events_app
from dexorder.cli.terminal.known_tickers import complete_ticker, complete_ticker_or_period
from dexorder.cli.terminal.options import (
    Chart,
    Dir,
    Format,
    GoFlags,
    Json,
    JsonLines,
    Out,
    Period,
    Plot,
    Quiet,
    Relay,
    Rows,
    Since,
    Ticker,
    To,
    Until,
    choices,
    example,
    split_periods,
)
from dexorder.cli.terminal.reporting import Reporting, deferred_group

if TYPE_CHECKING:
    from dexorder.cli.rows.options import OutputOptions

app = typer.Typer(
    name="dexorder",
    cls=Reporting,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Complete, verified market history in Iceberg, and delivery of user events.",
)
app.add_typer(deferred_group("dexorder.cli.history.queries", help="List, show and cancel requests."), name="requests")
app.add_typer(
    deferred_group("dexorder.cli.history.receipt", help="Receipts: which rows were used, and why each hole is a hole."),
    name="receipt",
)
app.add_typer(
    deferred_group("dexorder.cli.live.realtime", help="Realtime subscriptions: list, start and stop."), name="realtime"
)
app.add_typer(
    deferred_group("dexorder.cli.live.trigger", help="Triggers: conditions and patterns on live data, in Flink's SQL."),
    name="trigger",
)
app.add_typer(events_app, name="events")
app.add_typer(
    deferred_group(
        "dexorder.cli.udf.local",
        "dexorder.cli.udf.stream",
        help="Users' functions (UDFs): on the stream, over a file, and the shipped ones.",
    ),
    name="udf",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import dexorder

        typer.echo(f"dexorder {dexorder.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit")
    ] = False,
) -> None:
    """Take the options before the command."""


BasePort = Annotated[int | None, typer.Option(help="First port of the suite, instead of the default ports")]


@app.command(epilog=example("dexorder up", "dexorder up --base-port 51000 --exchanges binance"))
def up(
    directory: Dir = None,
    base_port: BasePort = None,
    only: Annotated[str, typer.Option(help="Parts to start, separated by commas; default: all")] = "",
    exchanges: Annotated[
        Path | None, typer.Option(help="Exchanges file; default: the simulated exchange as SIM")
    ] = None,
    recorded: Annotated[
        list[str] | None, typer.Option(help="FILE=SYMBOL for the simulated exchange to serve; may be repeated")
    ] = None,
    kafka: Annotated[str, typer.Option(help="host:port of an existing Kafka, instead of the embedded one")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors")] = False,
) -> None:
    """Run the suite on this machine until Ctrl-C."""
    from dexorder.cli.suite import commands as command

    command.up(directory, base_port, only, exchanges, recorded or [], kafka, quiet)


@app.command(
    epilog=example("dexorder serve relay", "dexorder serve gateway -kafkaPeers kafka:9092 -tcpAddr 127.0.0.1:19092"),
    cls=GoFlags,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(
    context: typer.Context,
    part: Annotated[
        str,
        typer.Argument(
            help="relay, ingestor, gateway, udsource, spark or sim",
            autocompletion=choices("relay", "ingestor", "gateway", "udsource", "spark", "sim"),
        ),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Only check its settings; exit code 1 if one is invalid")
    ] = False,
) -> None:
    """Run one part in this process until SIGTERM; its settings are in the environment (docs/settings.md).

    The gateway takes Kafka-Pixy's own flags, too.
    """
    from dexorder.cli.suite import serve as command

    command.serve(part, context.args, check=check)


@app.command(
    epilog=example(
        "dexorder history BTC/USDT.BINANCE 1h --since -30d",
        "dexorder history BTC/USDT.SIM ETH/USDT.SIM 1d -s 2024-01 -u 2024-03 -o candles.parquet",
        "dexorder history BTC/USDT.SIM 1m -s '2 hours ago' -q -o - > candles.csv",
    )
)
def history(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TICKER... PERIOD...",
            show_default=False,
            help="SYMBOL.VENUE, for example BTC/USDT.BINANCE or '*/USDT.BINANCE', then 1m, 1h ... or seconds; with "
            "--resume: the run's id",
            autocompletion=complete_ticker_or_period,
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    file: Annotated[Path | None, typer.Option(help="File of tickers, one per line, # for comments; - is stdin")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Return only the first N candles")] = None,
    as_json: Json = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Fetch the whole range from the exchange again")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also print and write the rows of a request that is incomplete in the end")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File for the rows: .parquet, .csv, .jsonl, .arrow; - is stdout; of many tickers also a folder",
        ),
    ] = None,
    out_format: Format = None,
    to: To = None,
    plot: Plot = None,
    chart: Chart = False,
    rows: Rows = 20,
    quiet: Quiet = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Longest wait, in seconds; the requests continue")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Number of tickers that are fetched at a time")] = 256,
    request_id: Annotated[str | None, typer.Option(help="Id of the request; joins an existing one")] = None,
    client_id: Annotated[str, typer.Option(help="Name of the caller, for `requests list`")] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run; default: the last one")
    ] = False,
    state: Annotated[Path | None, typer.Option(help="File that records the run, or that --resume reads")] = None,
    relay: Relay = None,
) -> None:
    """Fetch candles into Iceberg, wait for the notification and read them back."""
    from dexorder.cli.history import command as command
    from dexorder.cli.history import export
    from dexorder.cli.history.runs import RunStore
    from dexorder.cli.rows.options import OutputOptions

    store = RunStore(state.absolute() if state is not None else None)
    given, folder = words or [], out
    try:
        if to is not None:
            export.check(to, out, given, resume=resume, others=(as_json, chart, out_format, plot, limit, partial))
            out = None
        if resume:
            own = (since, until, file, limit, out_format, request_id)
            flags = (as_json, chart, refresh, partial, client_id)
            if len(given) > 1 or any(flags) or any(value is not None for value in own):
                raise ValueError(
                    "--resume continues the run as it was started: it accepts only the run's id, --out and --plot for "
                    "other files, --relay, --state, --timeout, --quiet and --parallel"
                )
            run = command.resumed(store.load(*given), relay=relay, out=out, plot=plot)
        else:
            options = OutputOptions(as_json, out, plot, chart, rows, partial, out_format)
            run = command.new_run(
                given,
                file,
                since,
                until,
                options,
                limit=limit,
                request_id=request_id,
                client_id=client_id,
                refresh=refresh,
                relay=relay,
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    code = command.run(run, store, timeout=timeout, quiet=quiet, parallel=parallel, is_resumed=resume)
    if to is not None and folder is not None and code == 0:
        export.export_run(run, to, folder)
    raise typer.Exit(code)


@app.command(epilog=example("dexorder read BTC/USDT.BINANCE 1h --since 2024-01-01 --out - --format jsonl"))
def read(
    ticker: Annotated[
        str,
        typer.Argument(
            help="SYMBOL.VENUE, or udf:NAME for the rows of a UDF", show_default=False, autocompletion=complete_ticker
        ),
    ],
    period: Period = "",
    since: Since = None,
    until: Until = None,
    as_json: Json = False,
    out: Out = None,
    out_format: Format = None,
    to: To = None,
    plot: Plot = None,
    chart: Chart = False,
    rows: Rows = 20,
    quiet: Quiet = False,
    relay: Relay = None,
) -> None:
    """Show the candles that the table has, without fetching any, or the rows of a UDF; all of them by default."""
    if to is not None:
        from dexorder.cli.history import export

        export.read_to(ticker, period, since, until, to, out, (as_json, chart, out_format, plot), relay)
        return
    import asyncio

    from dexorder.cli.history.command import read as command
    from dexorder.cli.rows.options import OutputOptions

    options = _checked(OutputOptions(as_json, out, plot, chart, rows, format=out_format))
    if ticker.startswith("udf:"):
        from dexorder.cli.udf.stored import read as read_udf

        read_udf(ticker.removeprefix("udf:"), since, until, options, relay)
    elif not period:
        raise typer.BadParameter("PERIOD is missing: give a name such as 1h, or seconds")
    else:
        asyncio.run(command(ticker, period, since, until, options, quiet=quiet, relay=relay))


def _checked(options: OutputOptions) -> OutputOptions:
    from dexorder.cli.rows.options import check_options

    try:
        check_options(options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return options


@app.command(
    epilog=example(
        "dexorder sql 'SELECT max(high) FROM \"BTC/USDT.BINANCE 1h\"' --since -30d", "dexorder sql - < query.sql"
    )
)
def sql(
    query: Annotated[
        str,
        typer.Argument(help='SELECT of DuckDB; a table is a series in quotes: "BTC/USDT.BINANCE 1h"; - is stdin'),
    ],
    since: Since = None,
    until: Until = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Most rows of all tables; they are in memory")] = 5_000_000,
    as_json: Json = False,
    out: Out = None,
    out_format: Format = None,
    rows: Rows = 20,
    relay: Relay = None,
) -> None:
    """Run SQL over the rows that the tables have, without fetching."""
    from dexorder.cli.history.sql import sql as command
    from dexorder.cli.rows.options import OutputOptions

    command(query, since, until, max_rows, _checked(OutputOptions(as_json, out, rows=rows, format=out_format)), relay)


@app.command(epilog=example("dexorder watch BTC/USDT.BINANCE --period 1m,5m"))
def watch(
    ticker: Ticker,
    period: Annotated[str, typer.Option(help="Candles, separated by commas; the chart is of the shortest")] = "1m",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Exit after so many trades and closed candles"),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Start a subscription, and stop it in the end")
    ] = True,
    live_only: Annotated[bool, typer.Option(help="Leave out trades that fill gaps or a start in the past")] = False,
    as_json: JsonLines = False,
    relay: Relay = None,
) -> None:
    """Show the live trades and candles of a market until Ctrl-C."""
    from dexorder.cli.live import watch as command

    command.watch(
        ticker, split_periods(period), count=count, as_json=as_json, start=start, live_only=live_only, relay=relay
    )


@app.command(epilog=example("dexorder tickers BINANCE --filter /USDT --top 20"))
def tickers(
    venue: Annotated[str, typer.Argument(help="Part of a ticker after its last dot, for example BINANCE")],
    text: Annotated[str, typer.Option("--filter", help="Only tickers that contain this text")] = "",
    top: Annotated[int | None, typer.Option("--top", "-n", min=1, help="Only so many markets, by quote volume")] = None,
    out: Out = None,
    out_format: Format = None,
    as_json: Json = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Longest wait, in seconds")] = 60.0,
    relay: Relay = None,
) -> None:
    """Take a snapshot of all tickers of an exchange, store it, and show it."""
    from dexorder.cli.live import tickers as command
    from dexorder.cli.rows.options import OutputOptions

    options = _checked(OutputOptions(as_json, out, format=out_format))
    command.tickers(venue, text, top, options, timeout, relay)


@app.command(epilog=example("dexorder funding BTC/USDT:USDT.BINANCE --since -30d"))
def funding(
    ticker: Annotated[str, typer.Argument(help="Perpetual future, for example BTC/USDT:USDT.BINANCE")],
    since: Since = None,
    until: Until = None,
    out: Out = None,
    out_format: Format = None,
    as_json: Json = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Longest wait, in seconds; the request goes on")] = None,
    relay: Relay = None,
) -> None:
    """Fetch the funding rates of a perpetual future, and show them."""
    from dexorder.cli.history import funding as command
    from dexorder.cli.rows.options import OutputOptions

    options = _checked(OutputOptions(as_json, out, format=out_format))
    command.funding(ticker, since, until, options, timeout, relay)


@app.command(epilog=example("dexorder markets BINANCE --filter /USDT --tickers"))
def markets(
    venue: Annotated[str, typer.Argument(help="Part of a ticker after its last dot, for example BINANCE")],
    text: Annotated[str, typer.Option("--filter", help="Only tickers that contain this text")] = "",
    tickers: Annotated[
        bool, typer.Option("--tickers", help="Print only tickers, one per line, as `history --file` reads them")
    ] = False,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """List the instruments of an exchange from the last report of its ingestors."""
    from dexorder.cli.history.markets import markets as command

    command(venue, text, tickers, as_json, relay)


@app.command(
    epilog=example(
        "dexorder coverage BTC/USDT.BINANCE 1h --since -7d",
        "dexorder coverage --why BTC/USDT.BINANCE 1h 2024-01-31T12:00",
    )
)
def coverage(
    ticker: Ticker,
    period: Period,
    time: Annotated[str | None, typer.Argument(help="With --why: a time of the candle", show_default=False)] = None,
    since: Since = None,
    until: Until = None,
    detail: Annotated[bool, typer.Option("--detail", help="Also print the pages behind the ranges")] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Show what is known of the candle or trades at TIME, and from where")
    ] = False,
    days: Annotated[
        bool, typer.Option("--days", help="Show the state of each day: proven, provisional, missing or not asked")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="With --days: write a calendar to this SVG file")
    ] = None,
    as_json: JsonLines = False,
    relay: Relay = None,
) -> None:
    """Show which ranges of a series the table covers, and the holes between them."""
    from dexorder.cli.history import queries as command

    if why != (time is not None) or (why and (since or until or detail or days)):
        raise typer.BadParameter("--why and TIME go together, without --since, --until, --detail and --days")
    if (picture and not days) or (days and detail):
        raise typer.BadParameter("--picture goes with --days, and --detail does not")
    if days:
        from dexorder.cli.history.days import coverage_days

        coverage_days(ticker, period, since, until, picture, as_json, relay)
        return
    if time is not None:
        from dexorder.cli.history.why import why as explain

        explain(ticker, period, time, as_json, relay)
        return
    command.coverage(ticker, period, since, until, detail, as_json, relay)


@app.command(epilog=example("dexorder verify BTC/USDT.BINANCE 1h --since -30d --repair"))
def verify(
    ticker: Ticker,
    period: Period,
    since: Since = None,
    until: Until = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove wrong rows, fetch lost and differing ones again")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not compare the values with the exchange; nothing is fetched")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    relay: Relay = None,
) -> None:
    """Compare the rows of the table with its coverage and with the exchange. Exit code 0 if they agree in the end."""
    from dexorder.cli.history import verify as command

    code = command.run(
        ticker,
        period,
        since,
        until,
        repair=repair,
        values=not offline,
        as_json=as_json,
        quiet=quiet,
        relay=relay,
    )
    raise typer.Exit(code)


@app.command(epilog=example("dexorder maintain --table trading.ohlc --dry-run"))
def maintain(
    spark: Annotated[
        str | None,
        typer.Option(
            help="host:port of the Spark driver; default DEXORDER_SPARK_ADDRESS, else the suite on this machine"
        ),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Table, for example trading.ohlc; may be repeated; default: all")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print the planned changes")] = False,
    as_json: Json = False,
) -> None:
    """Compact the tables and expire old snapshots now. Spark also does this on its own schedule."""
    from dexorder.cli.suite import commands as command

    command.maintain(spark, table or (), dry_run, as_json)


@app.command(epilog=example("dexorder gateway --pixy-config kafka-pixy.yaml"))
def gateway(
    pixy_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kafka-Pixy's YAML file; default DEXORDER_PIXY_CONFIG")
    ] = None,
) -> None:
    """Run only the gateway, configured by DEXORDER_GATEWAY_* and Kafka-Pixy's file, until Ctrl-C."""
    from dexorder.cli.suite import commands as command

    command.gateway(pixy_config)


@app.command(epilog=example("dexorder status --json"))
def status(directory: Dir = None, relay: Relay = None, as_json: Json = False) -> None:
    """Show every part of the local suite. Exit code 0 if all are ready."""
    from dexorder.cli.suite import commands as command

    raise typer.Exit(command.status(directory, relay, as_json))


@app.command(epilog=example("dexorder doctor"))
def doctor(
    directory: Dir = None,
    base_port: BasePort = None,
    exchange: Annotated[
        str | None,
        typer.Option(help="Say which rules an exchange gets, and measure them on a day: a venue, or ccxt's id"),
    ] = None,
    ticker: Annotated[
        str | None, typer.Option("--ticker", "-t", help="With --exchange: the market that is measured")
    ] = None,
    day: Annotated[str | None, typer.Option(help="With --exchange: the day (UTC); default: yesterday")] = None,
    as_json: Json = False,
    relay: Relay = None,
) -> None:
    """Check whether this machine can run the suite, or how an exchange's data is proven. A failure names its remedy."""
    if exchange is not None:
        import time

        from dexorder.cli.suite import doctor_exchange
        from dexorder.cli.suite.findings import show

        found = doctor_exchange.findings(exchange, ticker, day, relay, time.time_ns())
        raise typer.Exit(show(list(found), as_json))
    if ticker is not None or day is not None:
        raise typer.BadParameter("--ticker and --day go with --exchange")
    from dexorder.cli.suite import doctor as command

    raise typer.Exit(command.run(directory, base_port, as_json))


@app.command(epilog=example("dexorder backup suite.tar.gz --dir dexorder-data"))
def backup(archive: Annotated[Path, typer.Argument(help="FILE.tar.gz to write")], directory: Dir = None) -> None:
    """Write all state of a stopped local suite to one file."""
    from dexorder.cli.suite import commands as command

    command.backup(directory, archive)


@app.command(epilog=example("dexorder restore suite.tar.gz --dir dexorder-data"))
def restore(
    archive: Annotated[Path, typer.Argument(help="FILE.tar.gz that `dexorder backup` wrote")],
    directory: Dir = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Restore a backup to its folder, which must be empty or absent, after showing its contents."""
    from dexorder.cli.suite import commands as command

    command.restore(archive, directory, yes)
