"""freqtrade's own ``download-data`` at the simulated exchange, in an environment of its own, unmodified.

Its configuration names the exchange's addresses, as that of a user behind a proxy does (``ccxt_config``), and takes
candles from the API alone (``only_from_ccxt``): by default it reads Binance's old candles from archive files, which
this exchange does not have.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyarrow import feather, int64, timestamp

from bench.parts.backfill import make_client
from bench.parts.completeness.cells import Cell
from bench.parts.completeness.compare import HANG, QUIET, Row
from bench.parts.completeness.ways import VALUES
from dexorder_common.model.times import SECOND_NS
from tests.peers.environment import peer_python

PYTHON = "3.12"
"""The least version that freqtrade needs."""
_ERROR = re.compile(r" - (?:ERROR|CRITICAL) - (.*)")


def run_freqtrade(address: str, cell: Cell, deadline_s: float) -> tuple[str, list[Row]]:
    """Download the cell's range; return its end and the rows of its file inside the range.

    freqtrade always drops the newest candle, as it may be incomplete, so it is asked for a minute more.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(configuration(address, cell.symbol)))
        start_s, end_s = cell.span.start_ns // SECOND_NS, cell.span.end_ns // SECOND_NS + 60
        command = ["-I", "-m", "freqtrade", "download-data", "--config", "config.json", "--userdir", name]
        command += ["--datadir", name, "--pairs", cell.symbol, "--timeframes", "1m", "--no-color"]
        command += ["--timerange", f"{start_s}-{end_s}"]
        try:
            done = subprocess.run(
                [peer_python("freqtrade", PYTHON), *command],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return HANG, []
        rows = read_rows(folder / f"{cell.symbol.replace('/', '_')}-1m.feather")
    return end_of(done.returncode, done.stdout + done.stderr), [
        row for row in rows if row[0] is None or cell.span.start_ns <= row[0] < cell.span.end_ns
    ]


def configuration(address: str, symbol: str) -> dict[str, Any]:
    """Return the configuration of a user who has this one market."""
    exchange = {
        "name": "binance",
        "key": "",
        "secret": "",
        "only_from_ccxt": True,
        "pair_whitelist": [symbol],
        "ccxt_config": {
            "urls": {"api": make_client(address).urls["api"]},
            "options": {"fetchMarkets": {"types": ["spot"]}},
        },
    }
    return {"exchange": exchange, "stake_currency": symbol.partition("/")[2], "dry_run": True}


def end_of(code: int, log: str) -> str:
    """Return what its user is told: nothing, its exit code, or the first error of its log."""
    if code:
        return f"exits with {code}"
    found = _ERROR.search(log)
    return f"logs {' '.join(found[1].split())[:60]!r}" if found else QUIET


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file of candles; none if it does not exist."""
    if not file.exists():
        return []
    table: Any = feather.read_table(file)
    opens = pc.cast(pc.cast(table["date"], timestamp("ns", "UTC")), int64()).to_pylist()
    values = zip(*(table[name].to_pylist() for name in VALUES), strict=True)
    return list(zip(opens, values, strict=True))
