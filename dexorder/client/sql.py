"""``client.sql``: SQL of DuckDB over stored rows, which come from the catalog or through the relay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dexorder.client.inputs import check_ticker, covered_dataset, read_part
from dexorder.client.moments import Moment
from dexorder.client.series import AsyncSeries
from dexorder.client.table_rows import AsyncTableRows
from dexorder.errors import RequestRefused
from dexorder_common.model.coverage import CoverageKind
from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.packages import install_command

if TYPE_CHECKING:
    from dexorder.client.relayed import RelaySource
    from dexorder.rows.catalog import CatalogSource
    from dexorder.rows.table import Rows

MAX_ROWS = 5_000_000
"""Rows of all tables of a query, by default: about 500 MB of candles."""
_CONFINED = ("enable_external_access = false", "python_enable_replacements = false", "lock_configuration = true")
"""A query reads no files, no address and no variable of Python, and can't change that."""
_FORM = '"BTC/USDT.BINANCE 1h", with quotes'


async def run_sql(
    rows: AsyncTableRows,
    coverage: AsyncSeries,
    query: str,
    since: Moment | None,
    until: Moment | None,
    *,
    max_rows: int,
    on_note: Callable[[str], None],
) -> Rows:
    """Run a query; see ``AsyncClient.sql``."""
    source = await rows.source()
    tables = await asyncio.to_thread(_table_names, query)
    parts = {name: _part(name, since, until) for name in tables}
    for name, (series, span) in parts.items():
        ends = span.start_ns or None, None if span.end_ns == MAX_TIME_NS else span.end_ns
        period: str | int = series.period_seconds or series.dataset.name
        missing = [
            each.span
            for each in (await coverage.coverage(series.ticker, period, *ends)).whole(*ends)
            if each.kind is CoverageKind.MISSING
        ]
        if missing:
            on_note(f"{name} is not complete: nothing is known of {len(missing):,} ranges, the first is {missing[0]}")
    return await asyncio.to_thread(_run, source, query, parts, max_rows)


def _part(name: str, since: Moment | None, until: Moment | None) -> tuple[Series, TimeRange]:
    """Return the series that a table's name stands for, and the range of its rows."""
    ticker, _, period = name.rpartition(" ")
    if not ticker:
        raise RequestRefused(f"table {name!r} is not a series; write {_FORM}")
    check_ticker(ticker)
    dataset = covered_dataset(period)
    seconds, start_ns, end_ns = read_part(period, since, until, dataset=dataset)
    return Series(ticker, seconds, dataset), TimeRange(start_ns or 0, MAX_TIME_NS if end_ns is None else end_ns)


def _connect() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"the module duckdb is not installed: {install_command('sql')}", name="duckdb"
        ) from None
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for setting in _CONFINED:
        connection.execute(f"SET {setting}")
    return connection


def _table_names(query: str) -> list[str]:
    """Return the tables of a query, ascending; RequestRefused unless it is one SELECT."""
    with _connect() as connection:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    parsed = json.loads(text)
    if parsed["error"]:
        raise RequestRefused(f"sql: {parsed['error_message']}")
    if len(parsed["statements"]) != 1:
        raise RequestRefused("sql: give one statement, a SELECT")
    nodes = list(_nodes(parsed["statements"][0]))
    own = {entry["key"] for each in nodes if isinstance(each.get("cte_map"), dict) for entry in each["cte_map"]["map"]}
    return sorted({str(each["table_name"]) for each in nodes if each.get("type") == "BASE_TABLE"} - own)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield each node of a parsed query."""
    if isinstance(tree, dict):
        yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(each)


def _run(
    source: CatalogSource | RelaySource, query: str, parts: dict[str, tuple[Series, TimeRange]], max_rows: int
) -> Rows:
    import duckdb

    from dexorder.rows.table import Rows

    with _connect() as connection:
        left = max_rows
        for name, (series, span) in parts.items():
            found = _read(source, series, span, left)
            left -= found.num_rows
            connection.register(name, found)
        try:
            return Rows(connection.sql(query))
        except duckdb.Error as error:
            raise _refused(error) from None


def _read(source: CatalogSource | RelaySource, series: Series, span: TimeRange, left: int) -> Rows:
    """Return the rows of a series; RequestRefused for more than are left, before they are in memory."""
    from dexorder.rows.table import Rows

    if series.dataset is CANDLES:
        batches = source.stored(series, span).batches()
    else:
        batches = iter([source.points(series, span)])
    found = list[Rows]()
    for batch in batches:
        left -= batch.num_rows
        if left < 0:
            raise RequestRefused(f"{series} has too many rows for this query; give --since and --until, or --max-rows")
        found.append(batch)
    return Rows.concat(found)


def _refused(error: Exception) -> RequestRefused:
    return RequestRefused(f"sql: {str(error).strip()}")
