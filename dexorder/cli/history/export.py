"""``--to`` of ``dexorder history`` and ``dexorder read``: files for backtesting programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from dexorder.cli.history.runs import Run
from dexorder.cli.rows.options import STDOUT
from dexorder.cli.terminal import output
from dexorder.client.blocking import Client
from dexorder.client.inputs import covered_dataset
from dexorder.exports.formats import export_format
from dexorder_common.model.instrument import Series


def check(to: str, out: Path | None, words: Sequence[str], *, resume: bool, others: Sequence[object]) -> None:
    """Raise an error for options that contradict ``--to``, before any fetch."""
    if resume:
        raise typer.BadParameter("--to can't be combined with --resume: finish the run, then use `dexorder read --to`")
    for period in words[-1:]:
        export_format(to, Series("", 0, covered_dataset(period)))
    _check(to, out, others)


def _check(to: str, out: Path | None, others: Sequence[object]) -> None:
    if out is None or out == STDOUT or (out.exists() and not out.is_dir()):
        raise typer.BadParameter(f"--to {to} needs a folder: add --out FOLDER")
    if any(others):
        raise typer.BadParameter("--to can't be combined with --json, --chart, --plot, --format, --limit or --partial")


def export_run(run: Run, to: str, folder: Path) -> None:
    """Write a file for each ticker and period of a run that has ended."""
    with Client(run.relay) as client:
        for ticker in run.tickers:
            for seconds, span in run.periods:
                _tell(client.export(ticker, seconds, span.start_ns, span.end_ns, to=to, folder=folder))


def read_to(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    to: str,
    out: Path | None,
    others: Sequence[object],
    relay: str | None,
) -> None:
    """Write the stored rows of a range; ``trades`` in place of a period stands for these."""
    _check(to, out, others)
    if since is None:
        raise typer.BadParameter("--to needs --since: it writes the rows of a range that is complete")
    assert out is not None
    with Client(relay) as client:
        _tell(client.export(ticker, period, since, until or "now", to=to, folder=out))


def _tell(path: Path) -> None:
    output.stderr().print(f"written: {path}")
