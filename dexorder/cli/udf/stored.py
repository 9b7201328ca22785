"""``dexorder read udf:NAME``: the rows of a UDF's table."""

from __future__ import annotations

from typing import Any

from arro3.core import DataType

from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.rows.printing import print_table
from dexorder.client.blocking import Client
from dexorder.errors import RequestRefused
from dexorder.rows.table import Rows
from dexorder_common.model.times import from_datetime, iso

PREFIX = "udf:"
_HIDDEN = ("sequence", "period", "name", "group", "batch_time")


def read(name: str, since: str | None, until: str | None, options: OutputOptions, relay: str | None) -> None:
    """Print the rows, or write them to a file."""
    if options.plot or options.chart:
        raise RequestRefused("--plot and --chart draw candles; use --out, or `dexorder udf run --plot`")
    with Client(relay) as client:
        found = client.udf_rows(name, since, until)
    times = [each for each in found.column_names if DataType.is_timestamp(found[each].type)]
    columns = [each for each in found.column_names if each not in _HIDDEN]
    whole = options.out is not None or options.as_json
    shown: Rows = found if whole else found.slice(max(found.num_rows - options.rows, 0))

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(_cell(row[each]) if each not in times else iso(from_datetime(row[each])) for each in columns)

    print_table(options, shown, columns, cells, times, f"udf:{name}: {found.num_rows:,} rows in trading.udf_{name}")


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,.8g}" if isinstance(value, float) else str(value)
