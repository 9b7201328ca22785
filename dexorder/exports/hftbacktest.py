"""hftbacktest's event files: trades as an array of events in a compressed ``.npz``.

Exchange and local time are the exchange's time of the trade: hftbacktest adds its own latencies. Trades are in the
order of the exchange, so both are ascending.
"""

from __future__ import annotations

from pathlib import Path

from dexorder.exports.files import new_file, safe_name, symbol_of
from dexorder.rows.columns import not_installed
from dexorder.rows.table import Rows, times_ns
from dexorder_common.model.instrument import Series

_TRADE = 2
_EXCHANGE, _LOCAL = 1 << 31, 1 << 30
_SIDES = {"buy": 1 << 29, "sell": 1 << 28}
_FIELDS = (
    ("ev", "<u8"),
    ("exch_ts", "<i8"),
    ("local_ts", "<i8"),
    ("px", "<f8"),
    ("qty", "<f8"),
    ("order_id", "<u8"),
    ("ival", "<i8"),
    ("fval", "<f8"),
)


def write(rows: Rows, series: Series, folder: Path) -> Path:
    """Write the trades of a market; a file of the same market is replaced."""
    try:
        import numpy
    except ModuleNotFoundError:
        raise not_installed("hftbacktest", "numpy") from None
    events = numpy.zeros(rows.num_rows, numpy.dtype(list(_FIELDS), align=True))
    sides = [_SIDES.get(side, 0) for side in rows["side"].to_pylist()]
    events["ev"] = numpy.array(sides, numpy.uint64) | numpy.uint64(_TRADE | _EXCHANGE | _LOCAL)
    events["exch_ts"] = events["local_ts"] = times_ns(rows, "time")
    events["px"], events["qty"] = rows["price"].to_numpy(), rows["amount"].to_numpy()
    path = folder / f"{safe_name(symbol_of(series.ticker))}-trades.npz"
    with new_file(path) as stream:
        numpy.savez_compressed(stream, data=events)
    return path
