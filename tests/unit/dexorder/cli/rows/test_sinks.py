import io
import json
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder.cli.rows import file_writers
from dexorder.cli.rows.options import STDOUT, OutputOptions, check_out
from dexorder.cli.rows.sinks import Ends, JsonRows, file_rows
from dexorder.rows.table import Rows

_FIELDS: list[Any] = [
    pa.field("open_time", pa.timestamp("us", "UTC")),
    pa.field("open", pa.float64()),
    pa.field("trades", pa.int64()),
    pa.field("empty", pa.list_(pa.int64())),
]
SCHEMA = pa.schema(_FIELDS)


def batch(*rows: dict[str, Any]) -> Rows:
    return Rows(pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA))


def numbered(count: int, first: int = 0) -> Rows:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return batch(*({"open_time": start + timedelta(hours=i), "open": float(i)} for i in range(first, first + count)))


def printed(*batches: Rows) -> Any:
    stream = io.BytesIO()
    rows = JsonRows(stream, {"status": "OK", "missing": []})
    for part in batches:
        rows.write(part)
    rows.finish()
    return json.loads(stream.getvalue())


def test_json_values_are_exact() -> None:
    moment = datetime(2024, 1, 1, 2, 3, 4, 5, tzinfo=UTC)
    found = printed(
        batch(
            {"open_time": moment, "open": 0.1 + 0.2, "trades": 2**60 + 1, "empty": [1]},
            {"open_time": moment.replace(microsecond=0), "open": math.nan},
            {"open_time": None, "open": math.inf},
        )
    )
    assert found == {
        "status": "OK",
        "missing": [],
        "rows": [
            {"open_time": "2024-01-01T02:03:04.000005Z", "open": 0.1 + 0.2, "trades": 2**60 + 1, "empty": [1]},
            {"open_time": "2024-01-01T02:03:04Z", "open": None, "trades": None, "empty": None},
            {"open_time": None, "open": None, "trades": None, "empty": None},
        ],
    }


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 3, 0, 2], [7]])
def test_json_is_one_object_for_any_batches(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writers, "CHUNK_ROWS", 3)
    first = 0
    batches = []
    for size in sizes:
        batches.append(numbered(size, first))
        first += size
    assert [row["open"] for row in printed(*batches)["rows"]] == [float(i) for i in range(first)]


def test_nothing_is_written_before_the_first_rows() -> None:
    stream = io.BytesIO()
    JsonRows(stream, {"status": "OK"})
    assert stream.getvalue() == b""


@given(st.integers(0, 12), st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_ends_keep_the_first_and_the_last(limit: int, sizes: list[int]) -> None:
    ends, first = Ends(limit), 0
    for size in sizes:
        ends.write(numbered(size, first))
        first += size
    assert ends.head is not None and ends.tail is not None
    rows = [float(i) for i in range(first)]
    head = (limit + 1) // 2
    expected = rows if first <= limit else rows[:head] + rows[first - (limit - head) :]
    assert ends.head["open"].to_pylist() + ends.tail["open"].to_pylist() == expected
    assert ends.count == first


READERS: dict[str, Callable[[Any], pa.Table]] = {
    "parquet": pq.read_table,
    "csv": csv.read_csv,
    "jsonl": pyarrow.json.read_json,
    "arrow": lambda file: pa.ipc.open_file(file).read_all(),
}


@pytest.mark.parametrize("row_format", READERS)
def test_a_file_appears_complete_or_not_at_all(tmp_path: Path, row_format: str) -> None:
    file, read = tmp_path / f"rows.{row_format}", READERS[row_format]
    options = OutputOptions(out=file)
    with file_rows(options) as rows:
        rows.write(numbered(2))
        rows.write(numbered(3, 2))
        assert not file.exists()
    found = read(file)
    assert found["open"].to_pylist() == [0, 1, 2, 3, 4]
    assert ("empty" in found.schema.names) == (row_format != "csv")  # CSV has no lists
    with pytest.raises(OSError, match="no room"), file_rows(options) as rows:
        rows.write(numbered(1))
        raise OSError("no room")
    assert [p.name for p in tmp_path.iterdir()] == [file.name]
    assert read(file).num_rows == 5


@pytest.mark.parametrize("row_format", [None, *READERS])
def test_rows_on_stdout(row_format: str | None, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with file_rows(OutputOptions(out=STDOUT, format=row_format)) as rows:
        rows.write(numbered(2))
        rows.write(numbered(3, 2))
    stream = io.BytesIO(capfdbinary.readouterr().out)
    found = pa.ipc.open_stream(stream).read_all() if row_format == "arrow" else READERS[row_format or "csv"](stream)
    assert found["open"].to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "many", "message"),
    [
        ({"out": "rows.xlsx"}, False, "unknown extension; use .parquet or .csv or .jsonl or .arrow, or add --format"),
        ({"out": "folder"}, False, "unknown extension"),
        ({"out": "there"}, True, "is not a folder"),
        ({"out": "no/such/rows.csv"}, True, "does not exist"),
        ({"out": "no/such"}, True, "does not exist"),
        ({"out": "rows.csv", "format": "xlsx"}, False, "--format xlsx: unknown format; use one of parquet, csv"),
        ({"format": "csv"}, False, "--format is that of --out"),
        ({"out": "-", "as_json": True}, False, "--out - and --json both write to stdout"),
    ],
)
def test_out_that_cannot_be_written_to_is_refused(
    tmp_path: Path, options: dict[str, Any], many: bool, message: str
) -> None:
    (tmp_path / "there").touch()
    out = options.get("out")
    path = {"out": STDOUT if out == "-" else tmp_path / out} if out else {}
    with pytest.raises(ValueError, match=message):
        check_out(OutputOptions(**options | path), many=many)


def test_binary_rows_are_not_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for row_format in ("arrow", "parquet"):
        with pytest.raises(ValueError, match=f"{row_format} is binary; redirect stdout"):
            check_out(OutputOptions(out=STDOUT, format=row_format))
    check_out(OutputOptions(out=STDOUT))


def test_out_that_can_be_written_to_is_accepted(tmp_path: Path) -> None:
    for out, many in (("rows.CSV", False), ("folder", True), ("rows.parquet", True)):
        check_out(OutputOptions(out=tmp_path / out), many=many)
    check_out(OutputOptions(out=tmp_path / "rows.data", format="csv"))
    check_out(OutputOptions())
