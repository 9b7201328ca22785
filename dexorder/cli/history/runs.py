"""Runs of the ``history`` command: values, and their record on disk until the last result has been shown.

A run contains everything that is needed to continue it. The id of each ticker's request is derived from the run's id,
so the relay ignores a repeated submission.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dexorder.cli.rows.options import STDOUT, OutputOptions, file_format
from dexorder.client.inputs import check_ticker
from dexorder.errors import RunUnknown
from dexorder_common.config import state_folder
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.storage.whole_file import replace_text

KEPT_DAYS = 30
"""Recorded runs that nobody has continued for this long are deleted when another run is recorded."""
_FORMAT = 2


@dataclass(frozen=True)
class Run:
    """One use of the command."""

    run_id: str
    """With one ticker, also the id of its request."""
    relay: str
    many: bool
    """Print a list of results, even with one ticker."""
    tickers: tuple[str, ...]
    """In the given order, without duplicates, not validated: an invalid one is refused by ``request``."""
    periods: tuple[tuple[int, TimeRange], ...]
    """Each period in seconds with its range, which lies on its grid."""
    limit: int | None
    client_id: str
    output: OutputOptions
    refresh: bool = False

    @property
    def count(self) -> int:
        """Number of requests: one for each ticker and period. The requests of a ticker are adjacent."""
        return len(self.tickers) * len(self.periods)

    @property
    def unit(self) -> str:
        """Names of the requests."""
        return "tickers" if len(self.periods) == 1 else "series"

    def series(self, index: int) -> tuple[str, int, TimeRange]:
        """Return ticker, period in seconds and range of a request."""
        number, which = divmod(index, len(self.periods))
        return self.tickers[number], *self.periods[which]

    def request_id(self, index: int) -> str:
        """Return the id of a request; it is always the same."""
        return f"{self.run_id}-{index + 1:04}" if self.many else self.run_id

    def request(self, index: int) -> HistoryRequest:
        """Return a request; RequestRefused if its ticker is none."""
        ticker, period_seconds, span = self.series(index)
        check_ticker(ticker)
        return HistoryRequest(
            self.request_id(index),
            ticker,
            span.start_ns,
            span.end_ns,
            period_seconds,
            self.limit,
            self.client_id,
            self.refresh,
        )

    def own_file(self, index: int) -> Path | None:
        """Return the file for the rows of a request if ``--out`` is a folder, else None."""
        folder = self.output.out
        if not self.many or folder is None or self.common_file is not None:
            return None
        ticker, period_seconds, _ = self.series(index)
        return folder / f"{file_name(ticker)}.{PERIODS[period_seconds]}.{self.output.row_format}"

    @property
    def common_file(self) -> Path | None:
        """The file for the rows of all requests, if ``--out`` is a file or stdout."""
        out = self.output.out
        return out if out == STDOUT or file_format(out) else None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values from which ``run_from`` restores the run."""
        values = asdict(self)
        paths = {"out": self.output.out, "plot": self.output.plot}
        shown = values.pop("output") | {name: path and str(path) for name, path in paths.items()}
        return {"format": _FORMAT, **values, "shown": shown}


def run_from(values: dict[str, Any]) -> Run:
    """Return the run that ``as_json`` described; ValueError if another version wrote it, or it is damaged."""
    try:
        values = dict(values)
        if (found := values.pop("format")) != _FORMAT:
            raise ValueError(f"it has format {found}; this version reads format {_FORMAT}")
        output = OutputOptions(**values.pop("shown"))
        output = replace(output, out=output.out and Path(output.out), plot=output.plot and Path(output.plot))
        periods = tuple((seconds, TimeRange(**span)) for seconds, span in values.pop("periods"))
        tickers = tuple(values.pop("tickers"))
        return Run(**values, periods=periods, tickers=tickers, output=output)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is damaged: {error!r}") from None


def parse_tickers(text: str) -> tuple[str, ...]:
    """Return the tickers of a file: one per line, without comments (``#``) and duplicates."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(filter(None, lines)))


def file_name(ticker: str) -> str:
    """Return a file name for a ticker: ``_`` for ``/``, URL escapes for other marks; unique for each ticker."""
    return "".join({"/": "_", "_": "%5F"}.get(c) or quote(c, safe="") for c in ticker)


@dataclass(frozen=True)
class RunStore:
    """Record of unfinished runs: in ``file`` if given, else one file for each run in the user's state folder."""

    file: Path | None = None

    def save(self, run: Run) -> None:
        """Record a run durably, and delete old runs."""
        path = self._path(run.run_id)
        if self.file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in path.parent.glob("*.json"):
                if old.stat().st_mtime < time.time() - KEPT_DAYS * 86_400:
                    old.unlink(missing_ok=True)
        replace_text(path, json.dumps(run.as_json(), indent=2), synced=True)

    def load(self, run_id: str = "") -> Run:
        """Return the run with this id, or the last recorded one; RunUnknown if it is missing or can't be read."""
        path = self._path(run_id) if run_id or self.file else self._last()
        try:
            return run_from(json.loads(path.read_text()))
        except FileNotFoundError:
            raise RunUnknown(f"run {run_id or path} is not recorded; finished runs are deleted") from None
        except (OSError, ValueError) as error:
            raise RunUnknown(f"the run in {path} can't be read: {error}") from None

    def forget(self, run: Run) -> None:
        """Delete a finished run. A file that can't be deleted remains until it is too old."""
        with suppress(OSError):
            self._path(run.run_id).unlink(missing_ok=True)

    def resume_command(self, run: Run) -> str:
        """Return the command that continues a run."""
        return f"dexorder history --resume {f'--state {self.file}' if self.file else run.run_id}"

    def _path(self, run_id: str) -> Path:
        return self.file or _folder() / f"{quote(run_id, safe='')}.json"

    def _last(self) -> Path:
        found = list(_folder().glob("*.json"))
        if not found:
            raise RunUnknown("no unfinished run is recorded")
        return max(found, key=lambda path: path.stat().st_mtime_ns)


def _folder() -> Path:
    return state_folder() / "runs"
