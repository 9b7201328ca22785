"""A function over rows in memory, for notebooks and tests. It runs like on the stream, but without a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dexorder.udf.agent import Agent
from dexorder.udf.function import Function
from dexorder.udf.tables import PointMaker
from dexorder_udf import messages
from dexorder_udf.errors import UdfError
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.options import Given, check_options, parse_duration
from dexorder_udf.points import Batch, Point
from dexorder_udf.received import ReceivedItems
from dexorder_udf.session import Edge
from dexorder_udf.windows import Windows

_AT_ONCE = 5_000


def run_function(
    function: type[Function[Any]],
    rows: Any,
    *,
    options: Mapping[str, Given | Sequence[Given]] | None = None,
    time: str = "",
    by: Sequence[str] = (),
    name: str = "ohlc",
    window: str = "",
) -> Any:
    """Return the output of a function over rows, which are fed in their order.

    Args:
        rows: A pandas DataFrame, rows of the client, an Arrow table, or dictionaries.
        options: Values of the function's options.
        time: Column of the time; see `PointMaker`.
        by: Columns to group by; see `PointMaker`.
        name: Name of the points.
        window: Length of the batches of a function that wants batches: 90s, 5m, 1h.

    Returns:
        A DataFrame for a DataFrame, else dictionaries: time, name, tags and fields, of batches also ``batch_time``.
        Times are nanoseconds since 1970; in a DataFrame they are UTC.

    Raises:
        UdfError: The function refuses an option, or raises; the error has its file and line.
        TableError: A row can't be a point.
    """
    is_frame = hasattr(rows, "to_dict") and hasattr(rows, "columns")
    found: Iterable[Mapping[str, Any]] = rows.to_dict("records") if is_frame else _dictionaries(rows)
    maker = PointMaker(time, by, name)
    points = [maker.point({key: _plain(value) for key, value in row.items()}) for row in found]
    outputs = [row for item in run_points(function, points, options or {}, window) for row in _rows(item)]
    if not is_frame:
        return outputs
    import pandas as pd

    frame = pd.DataFrame(outputs)
    for column in {"time", "batch_time"} & set(frame.columns):
        frame[column] = pd.to_datetime(frame[column], utc=True)
    return frame


def run_points(
    function: type[Function[Any]],
    points: Sequence[Point],
    options: Mapping[str, Given | Sequence[Given]],
    window: str = "",
) -> list[Point | Batch]:
    """Return the outputs of a function over points; see `run_function`."""
    items: list[Point | Batch] = list(points)
    if function.wants is Edge.BATCH:
        length_ns = parse_duration(window) if window else 0
        if not length_ns or length_ns < 0:
            raise UdfError(
                function.__name__, f"it wants batches; window {window!r} is not a duration such as 90s or 1h"
            )
        windows = Windows(length_ns)
        items = [*(batch for each in points for batch in windows.add(each.group, each)), *windows.rest()]
    declared = {key: (each.value_type,) for key, each in function.options().items()}
    session = _Session(function)
    session.feed(
        messages.init_request(check_options(function.__name__, declared, options), "dexorder", function.__name__)
    )
    for first in range(0, len(items), _AT_ONCE):
        session.feed(b"".join(messages.encode_points(items[first : first + _AT_ONCE])))
    return session.end()


class _Session:
    """An agent with its output, decoded."""

    def __init__(self, function: type[Function[Any]]) -> None:
        self._name = function.__name__
        self._agent = Agent(function)
        self._received = ReceivedItems(function.provides)

    def feed(self, frames: bytes) -> None:
        self._take(self._agent.feed(frames))

    def end(self) -> list[Point | Batch]:
        self._take(self._agent.end())
        return self._received.take()

    def _take(self, frames: bytes) -> None:
        for body in FrameSplitter(1 << 62).feed(frames):
            if self._received.add_known(body):
                continue
            response = messages.decode_response(body)
            if self._received.add(body, response):
                continue
            if response.HasField("error"):
                raise UdfError(self._name, response.error.error)
            if response.HasField("init") and not response.init.success:
                raise UdfError(self._name, response.init.error)


def _dictionaries(rows: Any) -> Iterable[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = rows.to_pylist() if hasattr(rows, "to_pylist") else rows
    return found


def _plain(value: Any) -> Any:
    """Return a cell as a value of a point; the empty ones of pandas are None."""
    if hasattr(value, "isoformat"):
        return None if value != value else value  # NaT
    if hasattr(value, "item"):
        value = value.item()
    return None if value is None or (isinstance(value, float) and value != value) else value


def _rows(item: Point | Batch) -> Iterator[dict[str, Any]]:
    if isinstance(item, Batch):
        for each in item.points:
            tags = {**item.tags, **each.tags}
            yield {"time": each.time_ns, "batch_time": item.tmax_ns, "name": item.name, **tags, **each.fields}
    else:
        yield {"time": item.time_ns, "name": item.name, **item.tags, **item.fields}
