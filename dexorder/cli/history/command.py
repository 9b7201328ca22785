"""``dexorder history``: its arguments, and runs of one ticker or many that can be continued; and ``dexorder read``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dexorder.cli.history.many import ManyFollower, result_json
from dexorder.cli.history.markets import is_pattern, matching_tickers
from dexorder.cli.history.queries import provisional_text, shares
from dexorder.cli.history.runs import Run, RunStore, parse_tickers
from dexorder.cli.rows.options import STDOUT, OutputOptions, check_options, file_format
from dexorder.cli.rows.printing import print_rows
from dexorder.cli.terminal import output, progress
from dexorder.cli.terminal.unknown import Listings, refuse_unknown
from dexorder.client.async_client import AsyncClient
from dexorder.client.connection import relay_address
from dexorder.client.inputs import check_limit, closed_part, read_part, read_range
from dexorder.client.requests import Ended, history_error, history_span, new_request_id, without_repeats
from dexorder.client.table_rows import in_thread, read_span
from dexorder.errors import DexorderError, HistoryError, RelayUnreachable, RequestRefused
from dexorder.rows.answers import TABLE
from dexorder_common import tracing
from dexorder_common.model.coverage import CoverageKind
from dexorder_common.model.history import RequestStatus, id_json, range_json
from dexorder_common.model.periods import PERIOD_SECONDS, PERIODS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso


def new_run(
    words: Sequence[str],
    file: Path | None,
    since: str | None,
    until: str | None,
    options: OutputOptions,
    *,
    limit: int | None = None,
    request_id: str | None = None,
    client_id: str = "",
    refresh: bool = False,
    relay: str | None = None,
) -> Run:
    """Return the run that the arguments describe; ValueError if one is missing or contradicts another.

    ``words`` are tickers, then periods; ``file`` has more tickers, one per line, and is stdin if it is ``-``. A range
    that reaches into the future ends at the last closed candle. A ticker with ``*`` stands for the active markets that
    the exchange lists; RequestRefused if it lists none.
    """
    tickers, periods = _tickers(words, file)
    if since is None:
        raise ValueError("--since is required, for example --since 2024-01-01 or --since -30d")
    many = file is not None or len(tickers) * len(periods) > 1 or any(map(is_pattern, tickers))
    if many and (request_id or options.plot or options.chart):
        raise ValueError("--request-id, --plot and --chart require a single ticker and a single period")
    check_options(options, many=many)
    check_limit(limit)
    if refresh and limit is not None:
        raise ValueError("--refresh can't be combined with --limit; set --until to the end of the range to refresh")
    ranges = tuple(_range(period, since, until) for period in periods)
    run_id = new_request_id()[:12] if many else request_id or new_request_id()
    options = _with_files(options)
    if any(map(is_pattern, tickers)):
        tickers = matching_tickers(tickers, relay)
    return Run(run_id, relay_address(relay), many, tickers, ranges, limit, client_id, options, refresh)


def resumed(run: Run, *, relay: str | None, out: Path | None, plot: Path | None) -> Run:
    """Return a recorded run with another relay or other files; ValueError if one of these can't be written."""
    if plot is not None and run.many:
        raise ValueError("--plot requires a run of a single ticker and a single period")
    options = _with_files(replace(run.output, out=out or run.output.out, plot=plot or run.output.plot))
    if file_format(out) is not None:
        options = replace(options, format=None)  # the new file's extension names the format
    if out is not None or plot is not None:
        check_options(options, many=run.many)
    return replace(run, relay=relay or run.relay, output=options)


def _with_files(options: OutputOptions) -> OutputOptions:
    """Return the options with absolute paths, so that the run can be continued in any folder."""
    out, plot = (path and (path if path == STDOUT else path.absolute()) for path in (options.out, options.plot))
    return replace(options, out=out, plot=plot)


def _range(period: str, since: str, until: str | None) -> tuple[int, TimeRange]:
    seconds, given = read_range(period, since, until or "now")
    span = closed_part(given, seconds)
    if span != given and until is not None:
        output.stderr().print(f"--until {until} is in the future: the answer ends at {iso(span.end_ns)}")
    return seconds, span


def _is_period(word: str) -> bool:
    return word in PERIOD_SECONDS or word.isdigit()


def _tickers(words: Sequence[str], file: Path | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tickers and the periods: the words from the first period, or only the last word."""
    if not words or (file is None and len(words) < 2):
        raise ValueError("TICKER and PERIOD are required, for example BTC/USDT.BINANCE 1h; or --file and PERIOD")
    first = next((n for n, word in enumerate(words) if _is_period(word)), len(words) - 1)
    given, periods = tuple(dict.fromkeys(words[:first])), tuple(dict.fromkeys(words[first:]))
    if "." in periods[0]:
        raise ValueError(f"a period is missing after {words[-1]}, for example 1h")
    # The last word may be a misspelt period, which is refused as such.
    if others := [word for word in periods[1:] if "." in word or not (_is_period(word) or word == periods[-1])]:
        raise ValueError(f"{others[0]!r} comes after a period; write the tickers first, then the periods")
    if file is None:
        if not given:
            raise ValueError(f"{' and '.join(periods)} are periods; write the tickers before them")
        return given, periods
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--file {file} can't be read: {getattr(error, 'strerror', None) or error}") from None
    tickers = tuple(dict.fromkeys((*given, *parse_tickers(text))))
    if not tickers:
        raise ValueError(f"--file {file} contains no tickers; write one per line, for example BTC/USDT.BINANCE")
    return tickers, periods


def run(
    new: Run,
    store: RunStore,
    *,
    timeout: float | None = None,
    quiet: bool = False,
    parallel: int = 1,
    is_resumed: bool = False,
) -> int:
    """Carry out a run. Return 0 if every request is OK, 130 after Ctrl-C; raise if it can't be completed.

    The run is recorded before anything is submitted, and deleted when it is done or if no relay has accepted any of it.
    """
    follower: OneFollower | ManyFollower
    if new.many:
        follower = ManyFollower(new, timeout, quiet=quiet, parallel=parallel, is_resumed=is_resumed)
    else:
        follower = OneFollower(new, timeout, quiet=quiet, is_resumed=is_resumed)
    err = output.stderr()
    resume = _record(new, store)
    tracing.configure("cli")
    try:
        code = asyncio.run(follower.follow())
    except KeyboardInterrupt:
        err.print(f"\n{follower.stop_message()}{resume}")
        return 130
    except (RequestRefused, HistoryError):
        store.forget(new)
        raise
    except BrokenPipeError:
        raise  # the reader of stdout has closed it
    except (DexorderError, OSError) as error:
        if isinstance(error, RelayUnreachable) and not (follower.is_accepted or is_resumed):
            store.forget(new)  # no run to resume
        else:
            other = ", with --out or --plot for another file" if resume and not isinstance(error, DexorderError) else ""
            err.print(f"{follower.stop_message()}{resume}{other}")
        raise error if isinstance(error, DexorderError) else DexorderError(f"can't write: {error}") from None
    finally:
        tracing.shutdown()
    store.forget(new)
    return code


def _record(new: Run, store: RunStore) -> str:
    """Record the run. Return how to continue it, as the end of a sentence."""
    try:
        store.save(new)
    except OSError as error:
        if store.file is not None:
            raise DexorderError(f"--state {store.file} can't be written: {error}") from None
        output.stderr().print(f"the run can't be recorded, so --resume is not possible: {error}")
        return ""
    return f"; continue with: {store.resume_command(new)}"


class OneFollower:
    """Run of one ticker: one request. A resumed run was checked when it was new; its market may have been delisted."""

    def __init__(self, run: Run, timeout: float | None, *, quiet: bool, is_resumed: bool = False) -> None:
        self._run = run
        self._is_resumed = is_resumed
        self._request = run.request(0)
        self._timeout = timeout
        self._quiet = quiet
        self._accepted = self._has_ended = False
        self._err = output.stderr()

    async def follow(self) -> int:
        """Return 0, or 1 for a request that did not end OK. ``--json`` prints its record in both cases."""
        on_note = progress.ignore if self._quiet else without_repeats(self._err.print)
        async with AsyncClient(self._run.relay, on_note=on_note) as client:
            return await self._follow(client, on_note)

    async def _follow(self, client: AsyncClient, on_note: Callable[[str], None]) -> int:
        if not self._is_resumed:
            await Listings(client).refuse_unknown(self._request.ticker, self._request.period_seconds)
        with history_span(self._request):
            with progress.show_one(self._request, self._err, quiet=self._quiet) as on_progress:
                ended = await client.requests.fetch(
                    self._request, on_progress=on_progress, on_accepted=self._note_accepted, timeout=self._timeout
                )
            self._has_ended = True
            record, options = ended.record, self._run.output
            failed = record.status is not RequestStatus.OK
            if not failed or (options.partial and record.row_count):
                on_note("reading from Iceberg")
                batches = client.rows.batches(ended, partial=options.partial)
                with read_span():
                    await print_rows(options, batches, result_json(ended), _summary(ended))
            elif options.as_json:
                output.print_json({**result_json(ended), "rows": None})
            if record.provisional:
                on_note(provisional_text(record))
        if failed:
            output.print_failure(history_error(record))
        return int(failed)

    def _note_accepted(self) -> None:
        self._accepted = True

    @property
    def is_accepted(self) -> bool:
        """Whether the relay has the request on its disk."""
        return self._accepted

    def stop_message(self) -> str:
        """Return whether the relay has accepted the request, and whether it has ended."""
        name = self._request.request_id
        if self._has_ended:
            return f"request {name} has ended, but its rows were not written"
        if not self._accepted:
            return f"stopped before the relay answered; `dexorder requests show {name}` shows if it was accepted"
        return f"request {name} continues; look it up with: dexorder requests show {name}"


def _summary(ended: Ended) -> str:
    notification, record = ended.notification, ended.record
    return (
        f"{notification.topic} {notification.outcome.status}: {notification.outcome.row_count:,} rows in "
        f"{notification.table}, {record.empty_periods:,} periods verified empty, snapshot {record.snapshot_id}"
    )


async def read(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    options: OutputOptions,
    *,
    quiet: bool,
    relay: str | None,
) -> None:
    """Print the rows that the table has, without fetching any, and how much of the range it covers."""
    seconds, since_ns, until_ns = read_part(period, since, until)
    on_note = progress.ignore if quiet else without_repeats(output.stderr().print)
    async with AsyncClient(relay, on_note=on_note) as client:
        found = await client.rows.find(ticker, seconds, since_ns, until_ns)
        known = await client.series.coverage(ticker, seconds, since_ns, until_ns)
        if not found.row_count and not known.known:
            await refuse_unknown(client, ticker, seconds)
        whole = known.whole(since_ns, until_ns)
        text = f"{ticker} {PERIODS[seconds]}: {found.row_count:,} rows in {TABLE}, snapshot {found.snapshot_id}"
        summary = f"{text}; {shares(known, whole)}" if whole else f"{text}; nothing is covered"
        head = {
            "ticker": ticker,
            "period_seconds": seconds,
            "row_count": found.row_count,
            "missing": [range_json(each.span) for each in whole if each.kind is CoverageKind.MISSING],
            "snapshot_id": id_json(found.snapshot_id),
            "table": TABLE,
        }
        await print_rows(options, in_thread(found.batches()), head, summary)
