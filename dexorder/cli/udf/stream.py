"""Commands ``dexorder udf list|start|stop|logs``: the UDFs that run on the stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

import dexorder
from dexorder.cli.terminal import output
from dexorder.cli.terminal.options import Json, Relay, example, split_periods
from dexorder.cli.terminal.unknown import refuse_unlisted
from dexorder.client.inputs import read_moment, refused
from dexorder.errors import DexorderError, RequestRefused
from dexorder_common.model.history import id_json
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso
from dexorder_common.model.udf import UdfDefinition, UdfState, definition_from

if TYPE_CHECKING:
    from dexorder.client.udfs import ListedUdf

_POLL_SECONDS = 0.3

app = typer.Typer(rich_markup_mode=None)

Many = list[str] | None


@app.command("list", epilog=example("dexorder udf list"))
def list_udfs(as_json: Json = False, relay: Relay = None) -> None:
    """List the UDFs on the stream, with their states."""
    with dexorder.Client(relay) as client:
        found = client.udfs.list()
    if as_json:
        udfs = [_as_json(each) for each in found.udfs]
        output.print_json({"udfs": udfs, "reported_at": iso(found.reported_ns) if found.reported_ns else None})
        return
    columns = ("udf", "state", "input", "rows", "fed", "late", "lag", "restarts", "message")
    output.stdout().print(output.plain_table(columns, map(_cells, found.udfs)))
    if not found.reported_ns:
        output.stderr().print("the Spark driver has not reported since the relay's start")


@app.command(epilog=example("dexorder udf start ema20 --program moving_average --ticker BTC/USDT.BINANCE --period 1m"))
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
            since=_since_text(since),
            history=history,
            window=window,
        ),
        "output": _set(topic=topic, user_id=user, title=title),
    }
    udf = _definition(name, _set(**given), file)
    if isinstance(udf, UdfDefinition):
        asyncio.run(_check_tickers(udf.input.tickers, relay))
    with dexorder.Client(relay) as client:
        generation = client.udfs.start(udf, anew=anew)
        deadline = time.monotonic() + timeout
        while True:
            listed = next((each for each in client.udfs.list().udfs if each.name == name), None)
            state = listed.status.state if listed else UdfState.UNKNOWN
            if state in (UdfState.RUNNING, UdfState.FAILED) or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
    if as_json:
        output.print_json({"generation": id_json(generation), "udf": _as_json(listed) if listed else None})
    elif state is UdfState.RUNNING:
        output.stdout().print(f"{name} runs; its output is in trading.udf_{name}")
    elif state is UdfState.FAILED and listed:
        raise DexorderError(f"{name} has failed: {listed.status.message}")
    else:
        message = f": {listed.status.message}" if listed and listed.status.message else ""
        output.stderr().print(f"{name} is started; its state is {state.name.lower()}{message}")
    if state is UdfState.FAILED:
        raise typer.Exit(1)


@app.command(epilog=example("dexorder udf stop ema20"))
def stop(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)], relay: Relay = None
) -> None:
    """Stop UDFs. Their rows, states and positions stay."""
    with dexorder.Client(relay) as client:
        for each in names:
            client.udfs.stop(each)
            output.stderr().print(f"{each} is stopped; its rows, state and position stay")


@app.command(epilog=example("dexorder udf logs ema20 --follow"))
def logs(
    name: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing lines until Ctrl-C")] = False,
    relay: Relay = None,
) -> None:
    """Print the last lines that a UDF has written to stderr."""
    out, after = output.stdout(), 0
    with dexorder.Client(relay) as client:
        while True:
            for line in client.udfs.logs(name, after=after):
                after = line.number
                out.print(f"{iso(line.time_ns)} {line.text}")
            if not follow:
                return
            time.sleep(1.0)


def _set(**values: Any) -> dict[str, Any]:
    """Return the values that are given."""
    return {name: value for name, value in values.items() if value}


def _since_text(text: str) -> str:
    """Return ``now``, ``earliest`` or ISO text of a time as people write it."""
    if text in ("", "now", "earliest"):
        return text
    return iso(read_moment(text, "since", time.time_ns()))


def _definition(name: str, given: Mapping[str, Any], file: Path | None) -> str | UdfDefinition:
    """Return the definition of an entry of the file that ``given`` changes; the name if neither is given."""
    if not given and file is None:
        return name
    with refused():
        entry = _entry(name, file) if file else {}
        nested = {key: {**(entry.get(key) or {}), **given.get(key, {})} for key in ("options", "input", "output")}
        entry = {**entry, **given, **nested}
        entry.pop("start", None)
        if not {"program", "prog", "socket", "grpc"} & {key for key, value in entry.items() if value}:
            entry["program"] = name
        return definition_from(name, entry)


async def _check_tickers(tickers: Sequence[str], relay: str | None) -> None:
    async with dexorder.AsyncClient(relay) as client:
        await refuse_unlisted(client, *tickers)


def _entry(name: str, file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RequestRefused(f"{file} can't be read: {error}") from None
    udfs = found.get("udfs") if isinstance(found, dict) else None
    if not isinstance(udfs, dict) or not isinstance(udfs.get(name), dict):
        raise RequestRefused(f"{file}: udfs lacks an entry {name!r}")
    return dict(udfs[name])


def _cells(each: ListedUdf) -> tuple[str, ...]:
    status = each.status
    counts = (status.rows, status.fed, status.late, status.lag, status.restarts)
    return (each.name, status.state.name.lower(), _input(each), *(f"{count:,}" for count in counts), status.message)


def _input(each: ListedUdf) -> str:
    if each.definition is None:
        return "-"
    given = each.definition.input
    tickers = ", ".join(given.tickers) or "all"
    periods = ", ".join(PERIODS[period] for period in given.periods)
    return " ".join(part for part in (given.table, tickers, periods) if part)


def _as_json(each: ListedUdf) -> dict[str, Any]:
    status, definition = each.status, each.definition
    given = definition.input if definition else None
    return {
        "name": each.name,
        "state": status.state.name,
        "message": status.message,
        "table": f"trading.udf_{each.name}",
        "program": definition.program if definition else "",
        "options": {name: list(values) for name, values in definition.options.items()} if definition else {},
        "input": {
            "table": given.table,
            "tickers": list(given.tickers),
            "periods": [PERIODS[period] for period in given.periods],
            "since": None if given.since_ns is None else iso(given.since_ns),
            "history": given.history,
            "window_seconds": given.window_seconds,
        }
        if given
        else None,
        "output": {"topic": definition.output.topic, "user_id": definition.output.user_id} if definition else None,
        "rows": status.rows,
        "fed": status.fed,
        "late": status.late,
        "lag": status.lag,
        "restarts": status.restarts,
        "declared": each.declared,
        "client_id": each.client_id,
    }
