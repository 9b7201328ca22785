"""A run of the ``history`` command: its tickers, what is asked of each, and where the rows go. Pure.

A run has everything that is needed to go on with it: each ticker's request has an id made from the run's, so submitting
all of them again changes nothing at the relay, and following them again finds each where it is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dexorder.request import check_ticker
from services.common.model.history import HistoryRequest
from services.common.model.periods import PERIODS
from services.common.model.time_range import TimeRange

OUT_ENDINGS = (".parquet", ".csv")
_FORMAT = 1


@dataclass(frozen=True)
class Shown:
    """What the user wants to see of the results; files are absolute, so that a run can go on from anywhere."""

    as_json: bool = False
    out: Path | None = None
    plot: Path | None = None
    chart: bool = False
    rows: int = 20


@dataclass(frozen=True)
class Run:
    """One use of the command.

    Attributes:
        run_id: Of one ticker's run, the request's id too.
        relay: host:port it is submitted to.
        many: Shown as a list, whatever the number of tickers.
        tickers: In the order given, each once, unchecked: what is no ticker is refused when its turn comes.
        span: On the period's grid.
        refresh: Everything is fetched from the exchange again.
    """

    run_id: str
    relay: str
    many: bool
    tickers: tuple[str, ...]
    period_seconds: int
    span: TimeRange
    limit: int | None
    client_id: str
    shown: Shown
    refresh: bool = False

    def request_id(self, index: int) -> str:
        """The id of the request for ``tickers[index]``, always the same."""
        return f"{self.run_id}-{index + 1:04}" if self.many else self.run_id

    def request(self, index: int) -> HistoryRequest:
        """The request for ``tickers[index]``; RequestRefused if that is no ticker."""
        ticker = self.tickers[index]
        check_ticker(ticker)
        return HistoryRequest(
            self.request_id(index),
            ticker,
            self.span.start_ns,
            self.span.end_ns,
            self.period_seconds,
            self.limit,
            self.client_id,
            self.refresh,
        )

    def own_file(self, index: int) -> Path | None:
        """The file of ``tickers[index]`` alone, where ``--out`` is a folder; None otherwise."""
        folder = self.shown.out
        if not self.many or folder is None or self.common_file is not None:
            return None
        return folder / f"{file_name(self.tickers[index])}.{PERIODS[self.period_seconds]}.parquet"

    @property
    def common_file(self) -> Path | None:
        """The file that all rows go to; None if there is none."""
        out = self.shown.out
        return out if out is not None and out.suffix.lower() in OUT_ENDINGS else None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values from which ``run_from`` makes it again."""
        values = asdict(self)
        values["shown"] |= {
            name: path and str(path) for name, path in (("out", self.shown.out), ("plot", self.shown.plot))
        }
        return {"format": _FORMAT, **values}


def run_from(values: dict[str, Any]) -> Run:
    """The run that ``as_json`` described.

    Raises:
        ValueError: Another version's, or damaged.
    """
    try:
        values = dict(values)
        if (found := values.pop("format")) != _FORMAT:
            raise ValueError(f"it has format {found}, this version writes {_FORMAT}")
        shown = Shown(**values.pop("shown"))
        shown = replace(shown, out=shown.out and Path(shown.out), plot=shown.plot and Path(shown.plot))
        span, tickers = TimeRange(**values.pop("span")), tuple(values.pop("tickers"))
        return Run(**values, span=span, tickers=tickers, shown=shown)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is damaged: {error!r}") from None


def parse_tickers(text: str) -> tuple[str, ...]:
    """One ticker a line; what follows a ``#`` is a comment, and a repeat counts once."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(filter(None, lines)))


def file_name(ticker: str) -> str:
    """A ticker as part of a file's name: ``/`` as ``_``, other marks as in URLs; no two tickers share one."""
    return "".join({"/": "_", "_": "%5F"}.get(c) or quote(c, safe="") for c in ticker)
