"""Command line of ``dexorder udf``. The code of a command is in another module, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from dexorder.cli import Json, JsonLines

udf_app = typer.Typer(no_args_is_help=True, help="Users' functions (UDFs): run them over a file, serve shipped ones.")

Socket = Annotated[str, typer.Option(help="Path of a unix socket")]


@udf_app.command()
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
    from dexorder.cli import udf as command
    from dexorder.udf.tables import PointMaker

    maker = PointMaker(time, by or (), series)
    command.run(
        name, prog, socket, grpc, option or (), source, maker, window, timeout=timeout, rows=rows, as_json=as_json
    )


@udf_app.command()
def serve(
    name: Annotated[str, typer.Argument(help="A shipped function; see `udf functions`")],
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one session over stdin and stdout; the default")
    ] = False,
    socket: Socket = "",
    grpc: Annotated[str, typer.Option(help="host:port to serve gRPC on, without TLS")] = "",
) -> None:
    """Serve a shipped function to Kapacitor or to another host."""
    from dexorder.cli import udf as command

    raise typer.Exit(command.serve(name, socket, grpc))


@udf_app.command()
def functions(as_json: Json = False) -> None:
    """List the shipped functions with their options."""
    from dexorder.cli import udf as command

    command.functions(as_json)
