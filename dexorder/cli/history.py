"""``dexorder history``: what its arguments mean, and a run of it that can be gone on with after it was broken off."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dexorder.aio import new_request_id
from dexorder.cli import output
from dexorder.cli.sinks import check_out
from dexorder.connection import relay_address
from dexorder.errors import DexorderError, HistoryError, RequestRefused
from dexorder.request import check_limit, read_range
from dexorder.run_store import RunStore
from dexorder.runs import Run, Shown, parse_tickers


class Follower(Protocol):
    """Brings a run to its end."""

    async def follow(self) -> int:
        """Submit, wait, show; returns the exit code. What is raised says what stood in the way."""

    def goodbye(self) -> str:
        """Where the requests are when this is broken off."""


def new_run(
    words: Sequence[str],
    file: Path | None,
    since: str | None,
    until: str | None,
    shown: Shown,
    *,
    limit: int | None = None,
    request_id: str | None = None,
    client_id: str = "",
    refresh: bool = False,
    relay: str | None = None,
) -> Run:
    """The run that the command's arguments mean.

    Args:
        words: Tickers, then the period.
        file: More tickers, one a line; ``-`` is stdin.

    Raises:
        ValueError: They mean none.
        RequestRefused: A value can't be read; names it.
    """
    tickers, period = _tickers(words, file)
    if since is None or until is None:
        raise ValueError("--since and --until are needed")
    many = file is not None or len(tickers) > 1
    if many and (request_id or shown.plot or shown.chart):
        raise ValueError("--request-id, --plot and --chart are for one ticker")
    check_out(shown.out, many=many)
    if shown.plot is not None and shown.plot.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--plot {shown.plot} does not end in .html")
    if shown.as_json and shown.chart:
        raise ValueError("--chart and --json exclude each other")
    check_limit(limit)
    if refresh and limit is not None:
        raise ValueError("--refresh and --limit exclude each other")
    seconds, span = read_range(period, since, until)
    run_id = new_request_id()[:12] if many else request_id or new_request_id()
    shown = replace(shown, out=shown.out and shown.out.absolute(), plot=shown.plot and shown.plot.absolute())
    return Run(run_id, relay_address(relay), many, tickers, seconds, span, limit, client_id, shown, refresh)


def _tickers(words: Sequence[str], file: Path | None) -> tuple[tuple[str, ...], str]:
    if not words or (file is None and len(words) < 2):
        raise ValueError("TICKER and PERIOD are needed; or --file with tickers, and PERIOD")
    *given, period = words
    if file is None:
        return tuple(dict.fromkeys(given)), period
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--file {file} can't be read: {error}") from None
    tickers = tuple(dict.fromkeys((*given, *parse_tickers(text))))
    if not tickers:
        raise ValueError(f"--file {file} names no ticker")
    return tickers, period


def run(asked: Run, store: RunStore, *, timeout: float | None = None, quiet: bool = False, parallel: int = 16) -> int:
    """Bring it to its end; returns the exit code: 0 when every request is OK, 130 after Ctrl-C. Other ends raise.

    The run is recorded before anything is submitted, and forgotten once nothing of it is left to do.
    """
    if asked.many:
        from dexorder.cli.history_many import ManyFollower

        follower: Follower = ManyFollower(asked, timeout, quiet=quiet, parallel=parallel)
    else:
        from dexorder.cli.history_one import OneFollower

        follower = OneFollower(asked, timeout, quiet=quiet)
    err = output.stderr()
    resume = _record(asked, store)
    try:
        code = asyncio.run(follower.follow())
    except KeyboardInterrupt:
        err.print(f"\n{follower.goodbye()}{resume}", markup=False)
        return 130
    except (RequestRefused, HistoryError):
        store.forget(asked)
        raise
    except BrokenPipeError:
        raise  # who reads has had enough
    except (DexorderError, OSError) as error:
        err.print(f"{follower.goodbye()}{resume}", markup=False)
        raise error if isinstance(error, DexorderError) else DexorderError(f"can't write: {error}") from None
    store.forget(asked)
    return code


def _record(asked: Run, store: RunStore) -> str:
    """Record the run; returns how to go on with it, for the end of a sentence."""
    try:
        store.save(asked)
    except OSError as error:
        if store.file is not None:
            raise DexorderError(f"--state {store.file} can't be written: {error}") from None
        output.stderr().print(f"this run can't be recorded, so --resume will not know it: {error}", markup=False)
        return ""
    return f"; go on with it: {store.resume_command(asked)}"
