"""Files of rows, compared with those that pyarrow writes."""

from __future__ import annotations

import errno
import io
import threading
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dexorder.cli.rows import file_writers
from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.rows.sinks import file_rows
from dexorder.rows.table import Rows
from dexorder_common.lake.tables import OHLC, TICKERS, TICKS

COUNT = 1_000
DECLARED = (OHLC, TICKS, TICKERS)


def filled(schema: pa.Schema, count: int) -> pa.Table:
    """Return rows in which every second value of a column that may be missing is."""
    columns: list[Any] = []
    for field in schema:
        values = [None if field.nullable and n % 2 else n for n in range(count)]
        is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        columns.append(
            pa.array([each if each is None else str(each) for each in values] if is_text else values, field.type)
        )
    return pa.Table.from_arrays(columns, schema=schema)


def written(file: Path, table: pa.Table, sizes: list[int]) -> Path:
    with file_rows(OutputOptions(out=file)) as sink:
        start = 0
        for size in sizes:
            sink.write(Rows(table.slice(start, size)))
            start += size
    return file


def fields_of(file: Path) -> list[str]:
    """Return what a reader of Parquet without Arrow, such as Spark, sees of each column, with Iceberg's field ids."""
    return [line for line in str(pq.ParquetFile(file).schema).splitlines() if "_id=" in line and " group " not in line]


@pytest.mark.parametrize(
    "schema",
    [*(each.arrow for each in DECLARED), *(each.schema.as_arrow() for each in DECLARED)],
    ids=[f"{each.name}{source}" for source in ("", " of pyiceberg") for each in DECLARED],
)
def test_parquet_has_the_schema_and_the_rows(tmp_path: Path, schema: pa.Schema) -> None:
    table = filled(schema, COUNT)
    ours = written(tmp_path / "ours.parquet", table, [1, 0, 700, COUNT - 701])
    pq.write_table(table, theirs := tmp_path / "theirs.parquet")
    assert pq.read_schema(ours).equals(pq.read_schema(theirs), check_metadata=True)
    assert pq.read_table(ours).equals(table)
    assert fields_of(ours) == fields_of(theirs) and len(fields_of(ours)) == len(schema)
    with duckdb.connect() as database:
        described = [database.execute(f"DESCRIBE FROM '{file}'").fetchall() for file in (ours, theirs)]
        counted = database.execute(f"SELECT count(*) FROM '{ours}'").fetchall()
    assert described[0] == described[1] and counted == [(COUNT,)]
    codecs = {pq.read_metadata(file).row_group(0).column(0).compression for file in (ours, theirs)}
    assert codecs == {"SNAPPY"}


@pytest.mark.parametrize("is_pipe", [True, False])
def test_arrow_files_are_not_compressed(is_pipe: bool) -> None:
    table, stream = filled(OHLC.arrow, COUNT), io.BytesIO()
    rows = Rows(table)
    writer = file_writers.open_writer("arrow", stream, rows.schema, is_pipe=is_pipe)
    writer.write(rows)
    writer.close()
    assert len(stream.getvalue()) > table.nbytes
    found = (pa.ipc.open_stream if is_pipe else pa.ipc.open_file)(stream.getvalue()).read_all()
    assert found.equals(table) and found.schema.equals(table.schema, check_metadata=True)


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writers, "ROW_GROUP_ROWS", 300)
    file = written(tmp_path / "rows.parquet", filled(OHLC.arrow, COUNT), [250] * 4)
    metadata = pq.read_metadata(file)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [300, 300, 300, 100]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.csv", "rows.jsonl"])
def test_no_rows_are_a_file_with_columns(tmp_path: Path, name: str) -> None:
    file = written(tmp_path / name, filled(OHLC.arrow, 0), [0])
    text = {".csv": ",".join(f'"{each}"' for each in OHLC.arrow.names) + "\n", ".jsonl": ""}
    if file.suffix in text:
        assert file.read_text() == text[file.suffix]
    else:
        found = pq.read_table(file) if file.suffix == ".parquet" else pa.ipc.open_file(str(file)).read_all()
        assert found.num_rows == 0 and found.schema == OHLC.arrow


class Full(io.RawIOBase):
    """Stream on a disk that is full after some bytes."""

    written = 0

    def write(self, data: Any) -> int:
        self.written += len(data)
        if self.written > 10_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


@pytest.mark.parametrize("row_format", ["parquet", "arrow", "csv", "jsonl"])
def test_a_full_disk_is_an_error_and_no_panic(
    row_format: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(file_writers, "ROW_GROUP_ROWS", 100)
    rows = Rows(filled(OHLC.arrow, COUNT))
    writer = file_writers.open_writer(row_format, cast(Any, Full()), rows.schema, is_pipe=True)
    with pytest.raises(OSError, match="No space left"):
        for _ in range(100):
            writer.write(rows)
    if row_format in ("parquet", "arrow"):
        with pytest.raises(OSError, match="No space left"):
            writer.close()
    assert "panicked" not in capfd.readouterr().err
    assert not any(thread.name == "dexorder-writer" for thread in threading.enumerate())


def test_rows_with_other_columns_end_the_writer() -> None:
    rows = Rows(filled(OHLC.arrow, 3))
    writer = file_writers.open_writer("parquet", io.BytesIO(), rows.schema, is_pipe=False)
    with pytest.raises(Exception, match="number of columns"):
        writer.write(rows.select(["open"]))
    writer.close()
