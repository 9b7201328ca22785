"""Progress of requests below a cell of a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module
from typing import Any

from dexorder_common.model.history import Progress, RequestState

REFRESH_SECONDS = 0.2
"""Shortest time between two updates of the page."""


def is_notebook() -> bool:
    """Return whether the process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class ProgressView:
    """One bar for each ticker, shown below the cell that creates the view."""

    def __init__(self, tickers: Sequence[str], display: Callable[..., Any] | None = None) -> None:
        """Show the bars with ``display``, by default IPython's, which must be installed."""
        self._progress: dict[str, Progress | None] = dict.fromkeys(tickers)
        self._updated_s = 0.0
        show: Callable[..., Any] = display or import_module("IPython.display").display
        self._handle = show(self, display_id=True)

    def update(self, ticker: str, now: Progress) -> None:
        """Show the progress of a ticker."""
        self._progress[ticker] = now
        is_last = now.state is RequestState.FINISHED
        if is_last or time.monotonic() - self._updated_s >= REFRESH_SECONDS:
            self._updated_s = time.monotonic()
            self._handle.update(self)

    def _repr_html_(self) -> str:
        """Return the bars as HTML."""
        rows = "".join(
            f'<tr><td>{escape(ticker)}</td><td><progress value="{_share(now):.3f}"></progress></td>'
            f"<td>{escape(_text(now))}</td></tr>"
            for ticker, now in self._progress.items()
        )
        return f"<table>{rows}</table>"

    def __repr__(self) -> str:
        """Return the bars as text, for what shows no HTML."""
        return "\n".join(f"{ticker}: {_text(now)}" for ticker, now in self._progress.items())


def _share(now: Progress | None) -> float:
    return now.settled_periods / now.expected_periods if now is not None and now.expected_periods else 0.0


def _text(now: Progress | None) -> str:
    if now is None:
        return "submitting"
    text = f"{now.settled_periods:,} of {now.expected_periods:,} candles"
    if now.state is RequestState.FINISHED:
        return f"{text}, finished"
    return f"{text}, waiting: {now.waiting}" if now.waiting else text
