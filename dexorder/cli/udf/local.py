"""Commands ``dexorder udf run|serve|functions``: a UDF over a file, and the shipped functions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dexorder.cli.terminal import output
from dexorder.cli.terminal.options import Json, JsonLines, example
from dexorder.cli.udf.outputs import OutputTable, output_options
from dexorder.errors import DexorderError, RequestRefused
from dexorder.udf.functions import FUNCTIONS
from dexorder.udf.tables import PointMaker, json_row, read_rows
from dexorder_udf.errors import UdfError
from dexorder_udf.options import parse_duration, split_assignments
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge
from dexorder_udf.spec import UdfSpec
from dexorder_udf.windows import Windows

if TYPE_CHECKING:
    from dexorder_udf.host import UdfHost

app = typer.Typer(rich_markup_mode=None)

Socket = Annotated[str, typer.Option(help="Path of a unix socket")]


class UdfFailed(DexorderError):
    """The UDF can't run, or has failed; the message has its own words."""


@app.command(epilog=example("dexorder udf run moving_average --option size=20 --input candles.parquet"))
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
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the output: .parquet, .csv, .jsonl, .arrow")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="FILE.html for a chart with a line for each field")] = None,
    as_json: JsonLines = False,
) -> None:
    """Run a UDF over a file and print its output; the UDF's stderr goes to stderr."""
    from dexorder_udf.host import UdfHost

    spec = _spec(name, prog, socket, grpc, option or (), timeout)
    window_ns = parse_duration(window) if window else 0
    if window_ns is None or window_ns < 0:
        raise RequestRefused(f"--window: {window!r} is not a duration such as 90s, 5m or 1h")
    if source == "-" and sys.stdin.isatty():
        raise RequestRefused("--input: give a file, or JSON lines on stdin")
    options = output_options(out, plot)
    files = OutputTable() if out or plot else None
    printer = _JsonPrinter() if as_json else _Table(rows)
    fed = 0
    try:
        host = UdfHost(spec, on_log=output.stderr().print)
        host.start()
        try:
            batches = _windows(host, window_ns)
            for piece in _pieces(source, PointMaker(time, by or (), series), batches):
                fed += _points(piece)
                _take(host.exchange(piece), printer, files)
        finally:
            last = host.close()
        _take(last, printer, files)
        if files is not None:
            files.save(options)
    except UdfError as error:
        raise UdfFailed(str(error)) from None
    finally:
        printer.finish()
    late = f", {batches.late:,} late ones left out: the windows were closed" if batches and batches.late else ""
    restarted = f", restarted {host.restarts} times" if host.restarts else ""
    output.stderr().print(f"{fed:,} points in, {printer.count:,} out{late}{restarted}")


@app.command(epilog=example("dexorder udf serve moving_average --socket /run/udf.sock"))
def serve(
    name: Annotated[str, typer.Argument(help="A shipped function; see `udf functions`")],
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one session over stdin and stdout; the default")
    ] = False,
    socket: Socket = "",
    grpc: Annotated[str, typer.Option(help="host:port to serve gRPC on, without TLS")] = "",
) -> None:
    """Serve a shipped function to Kapacitor or to another host."""
    from dexorder.udf import servers

    if name not in FUNCTIONS:
        raise RequestRefused(f"{name!r} is not one of the functions {', '.join(FUNCTIONS)}")
    if socket and grpc:
        raise RequestRefused("give one of --stdio, --socket and --grpc")
    if socket:
        servers.serve_socket(FUNCTIONS[name], socket)
    elif grpc:
        servers.serve_grpc(FUNCTIONS[name], grpc)
    else:
        raise typer.Exit(servers.serve_stdio(FUNCTIONS[name]))


@app.command(epilog=example("dexorder udf functions"))
def functions(as_json: Json = False) -> None:
    """List the shipped functions with their options."""
    rows: list[dict[str, Any]] = [
        {
            "function": name,
            "wants": function.wants.name.lower(),
            "provides": function.provides.name.lower(),
            "does": (function.__doc__ or "").partition("\n")[0],
            "options": {
                key: {"type": each.value_type.name.lower(), "help": each.help}
                | ({} if each.required else {"default": each.default})
                for key, each in function.options().items()
            },
        }
        for name, function in FUNCTIONS.items()
    ]
    if as_json:
        output.print_json(rows)
        return
    for row in rows:
        output.stdout().print(f"{row['function']}: {row['does']}")
        for key, each in row["options"].items():
            default = f", default {each['default']}" if "default" in each else ""
            output.stdout().print(f"    {key} ({each['type']}{default}): {each['help']}")


def _spec(name: str, prog: str, socket: str, grpc: str, options: Sequence[str], timeout: float) -> UdfSpec:
    words = shlex.split(prog)
    if name:
        if name not in FUNCTIONS:
            raise RequestRefused(
                f"{name!r} is not one of the functions {', '.join(FUNCTIONS)}; for another one use --prog"
            )
        if prog or socket or grpc:
            raise RequestRefused("give a function's name or one of --prog, --socket and --grpc")
        words = [sys.executable, "-m", "dexorder.udf.functions", name]
    try:
        return UdfSpec(
            name or words[-1].rpartition("/")[2] if words else socket or grpc,
            prog=words[0] if words else None,
            args=tuple(words[1:]),
            socket=socket or None,
            grpc_target=grpc or None,
            options=split_assignments(options),
            timeout_seconds=timeout,
            max_restarts=0,  # who tests a function wants to see its first death
        )
    except UdfError as error:
        raise RequestRefused(f"{error}; give a function's name, --prog, --socket or --grpc") from None


def _windows(host: UdfHost, window_ns: int) -> Windows | None:
    if host.info.wants is Edge.STREAM:
        if window_ns:
            raise UdfFailed("--window: the UDF wants points, not batches; leave it out")
        return None
    if not window_ns:
        raise UdfFailed("--window: the UDF wants batches; give their length, for example 1h")
    return Windows(window_ns)


def _pieces(source: str, maker: PointMaker, windows: Windows | None) -> Iterator[Sequence[Point | Batch]]:
    for found in read_rows(source, sys.stdin):
        points = [maker.point(row) for row in found]
        yield points if windows is None else [batch for each in points for batch in windows.add(each.group, each)]
    if windows is not None:
        yield windows.rest()


class _JsonPrinter:
    """One JSON object for each output."""

    count = 0

    def add(self, outputs: Sequence[Point | Batch]) -> None:
        self.count += _points(outputs)
        for each in outputs:
            output.print_json_line(json_row(each))

    def finish(self) -> None:
        pass


class _Table:
    """The first points of the output, and the number of the others."""

    def __init__(self, rows: int) -> None:
        self.count = 0
        self._limit = rows
        self._rows: list[dict[str, str]] = []

    def add(self, outputs: Sequence[Point | Batch]) -> None:
        self.count += _points(outputs)
        for each in outputs:
            for row in _flat(each):
                if len(self._rows) < self._limit:
                    self._rows.append(row)

    def finish(self) -> None:
        columns = list(dict.fromkeys(key for row in self._rows for key in row))
        if not columns:
            return
        output.stdout().print(
            output.plain_table(columns, ([row.get(key, "") for key in columns] for row in self._rows))
        )
        if self.count > len(self._rows):
            output.stdout().print(f"... {self.count - len(self._rows):,} more")


def _take(outputs: Sequence[Point | Batch], printer: _JsonPrinter | _Table, files: OutputTable | None) -> None:
    printer.add(outputs)
    if files is not None:
        files.add(outputs)


def _points(outputs: Sequence[Point | Batch]) -> int:
    return sum(len(each.points) if isinstance(each, Batch) else 1 for each in outputs)


def _flat(item: Point | Batch) -> Iterator[dict[str, str]]:
    row: dict[str, Any] = json_row(item)
    for each in row.get("points", [row]):
        cells = {"time": each["time"], "name": row["name"], **row["tags"], **each["tags"], **each["fields"]}
        yield {key: f"{value:,.8g}" if isinstance(value, float) else str(value) for key, value in cells.items()}
