"""Commands ``dexorder udf list|start|stop|logs``: the UDFs that run on the stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dexorder.cli.terminal import output
from dexorder.cli.terminal.unknown import refuse_unlisted
from dexorder.client.async_client import AsyncClient
from dexorder.client.blocking import Client
from dexorder.client.moments import moment_ns
from dexorder.client.udfs import ListedUdf
from dexorder.errors import DexorderError, RequestRefused
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import id_json
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso
from dexorder_common.model.udf import UdfDefinition, UdfState, definition_from

_POLL_SECONDS = 0.3


def list_udfs(as_json: bool, relay: str | None) -> None:
    """Print the UDFs and their states."""
    with Client(relay) as client:
        found = client.udfs.list()
    if as_json:
        udfs = [_as_json(each) for each in found.udfs]
        output.print_json({"udfs": udfs, "reported_at": iso(found.reported_ns) if found.reported_ns else None})
        return
    columns = ("udf", "state", "input", "rows", "fed", "late", "lag", "restarts", "message")
    output.stdout().print(output.plain_table(columns, map(_cells, found.udfs)))
    if not found.reported_ns:
        output.stderr().print("the Spark driver has not reported since the relay's start")


def start(
    name: str,
    given: Mapping[str, Any],
    file: Path | None,
    *,
    anew: bool,
    timeout: float,
    as_json: bool,
    relay: str | None,
) -> int:
    """Start a UDF, and wait until it runs or has failed; return the exit code.

    Args:
        given: Keys of an entry under ``udfs:``; empty for the definition that is known under the name.
        file: A file with an entry of this name, which ``given`` changes.
    """
    udf = _definition(name, given, file)
    if isinstance(udf, UdfDefinition):
        asyncio.run(_check_tickers(udf.input.tickers, relay))
    with Client(relay) as client:
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
    return 1 if state is UdfState.FAILED else 0


def stop(names: Sequence[str], relay: str | None) -> None:
    """Stop UDFs."""
    with Client(relay) as client:
        for each in names:
            client.udfs.stop(each)
            output.stderr().print(f"{each} is stopped; its rows, state and position stay")


def logs(name: str, follow: bool, relay: str | None) -> None:
    """Print the last lines of a UDF; with ``follow``, also new lines, until Ctrl-C."""
    out, after = output.stdout(), 0
    with Client(relay) as client:
        while True:
            for line in client.udfs.logs(name, after=after):
                after = line.number
                out.print(f"{iso(line.time_ns)} {line.text}")
            if not follow:
                return
            time.sleep(1.0)


def since_text(text: str) -> str:
    """Return ``now``, ``earliest`` or ISO text of a time as people write it."""
    if text in ("", "now", "earliest"):
        return text
    try:
        return iso(moment_ns(text, "since", now_ns=time.time_ns()))
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


def _definition(name: str, given: Mapping[str, Any], file: Path | None) -> str | UdfDefinition:
    if not given and file is None:
        return name
    try:
        entry = _entry(name, file) if file else {}
        nested = {key: {**(entry.get(key) or {}), **given.get(key, {})} for key in ("options", "input", "output")}
        entry = {**entry, **given, **nested}
        entry.pop("start", None)
        if not {"program", "prog", "socket", "grpc"} & {key for key, value in entry.items() if value}:
            entry["program"] = name
        return definition_from(name, entry)
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


async def _check_tickers(tickers: Sequence[str], relay: str | None) -> None:
    async with AsyncClient(relay) as client:
        await refuse_unlisted(client, *tickers)


def _entry(name: str, file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise RequestRefused(f"{file} can't be read: {error}") from None
    udfs = found.get("udfs") if isinstance(found, dict) else None
    if not isinstance(udfs, dict) or not isinstance(udfs.get(name), dict):
        raise RequestRefused(f"{file} has no entry {name!r} under udfs")
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
