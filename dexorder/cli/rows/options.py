"""Output of rows as the options of ``history`` and ``read`` ask for it, and the check of these options."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

FORMATS = ("parquet", "csv", "jsonl", "arrow")
"""Formats of ``--out``, which are also the extensions of its files."""
STDOUT = Path("-")
"""``--out`` that means stdout."""


@dataclass(frozen=True)
class OutputOptions:
    """Output of a run; paths are absolute, so that the run can be continued in any folder."""

    as_json: bool = False
    out: Path | None = None
    plot: Path | None = None
    chart: bool = False
    rows: int = 20
    partial: bool = False
    """Also write the rows of a request that did not end OK."""
    format: str | None = None
    """Format of the rows of ``out``; None for that of its extension."""

    @property
    def row_format(self) -> str:
        """The format of the rows of ``out``: the given one, the extension's, CSV on stdout, else Parquet."""
        if self.format is not None:
            return self.format
        if self.out == STDOUT:
            return "csv"
        return file_format(self.out) or FORMATS[0]


def file_format(file: Path | None) -> str | None:
    """Return the format of rows that the extension of a file names; None for another extension."""
    ending = file.suffix.lower().removeprefix(".") if file is not None else ""
    return ending if ending in FORMATS else None


def check_options(options: OutputOptions, *, many: bool = False) -> None:
    """Raise ValueError if a file can't be written or two options contradict each other."""
    check_out(options, many=many)
    if options.plot is not None and options.plot.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--plot {options.plot}: unknown extension; use .html")
    if options.plot is not None:
        if options.plot.is_dir():
            raise ValueError(f"--plot {options.plot} is a folder; name a file in it")
        _check_folder("--plot", options.plot)
        if find_spec("plotly") is None:  # before anything is fetched
            raise ModuleNotFoundError("plotly is not installed", name="plotly")
    if options.as_json and options.chart:
        raise ValueError("--chart can't be combined with --json; use --plot FILE.html")


def check_out(options: OutputOptions, *, many: bool = False) -> None:
    """Raise ValueError if ``--out`` can't be written or ``--format`` is unknown.

    With ``many`` tickers a name without a known extension is a folder, which may not exist yet.
    """
    out, known = options.out, ", ".join(FORMATS)
    if options.format is not None and options.format not in FORMATS:
        raise ValueError(f"--format {options.format}: unknown format; use one of {known}")
    if out is None:
        if options.format is not None:
            raise ValueError("--format is that of --out; add --out FILE, or --out - for stdout")
        return
    if out == STDOUT:
        _check_stdout(options)
        return
    if file_format(out) is None:
        endings = " or ".join(f".{each}" for each in FORMATS)
        if not many and options.format is None:
            raise ValueError(f"--out {out}: unknown extension; use {endings}, or add --format")
        if many and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is not a folder and has an unknown extension; use a folder or {endings}")
    elif out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file in it")
    _check_folder("--out", out)


def _check_folder(option: str, file: Path) -> None:
    folder = file.absolute() if file.is_dir() else file.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{option} {file}: folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {file}: folder {folder} can't be written; choose another one")


def _check_stdout(options: OutputOptions) -> None:
    if options.as_json:
        raise ValueError("--out - and --json both write to stdout; use --format jsonl for rows as JSON")
    if options.row_format in ("arrow", "parquet") and sys.stdout.isatty():
        raise ValueError(f"--out -: {options.row_format} is binary; redirect stdout, or use --format csv")
