"""Streams that nobody reads hold little memory together, and lose no row when they are read on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb
from dexorder_relay.reading import held_windows, row_stream
from dexorder_relay.reading.held_windows import HeldWindows
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, at, suite

ROWS = pa.table({"a": list(range(1_000))})
WANTED = pb.StreamRowsRequest(series=series(ticker=TICKER, period_seconds=60))


def opens(found: list[pb.StreamRowsResponse]) -> list[int]:
    table = pa.ipc.open_stream(b"".join(each.data for each in found)).read_all()
    times: Any = table["open_time"].cast(pa.int64()).to_pylist()
    return [each * 1_000 for each in times]


def test_windows_that_were_used_longest_ago_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_windows, "MAX_HELD_BYTES", 2 * ROWS.nbytes)
    held = HeldWindows()
    with held.stream() as first, held.stream() as second, held.stream() as third:
        held.hold(first, ROWS)
        held.hold(second, ROWS)
        held.used(first)
        held.hold(third, ROWS)
        assert [each.table is None for each in (first, second, third)] == [False, True, False]
        held.hold(first, pa.concat_tables([ROWS] * 10))
        assert [each.table is None for each in (first, second, third)] == [False, True, True]
    assert (held._bytes, held._used) == (0, {})


def test_messages_of_many_streams_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_windows, "MAX_MESSAGES_BYTES", 2 * ROWS.nbytes)
    monkeypatch.setattr(held_windows, "MIN_MESSAGE_BYTES", ROWS.nbytes // 10)
    held = HeldWindows()
    with held.stream():
        assert held.message_rows(ROWS, 300) == 300
        assert held.message_rows(ROWS, 5_000) == 2_000
        with held.stream(), held.stream(), held.stream():
            assert held.message_rows(ROWS, 5_000) == 500


async def test_streams_whose_windows_are_dropped_give_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_stream, "WINDOW_PERIODS", 5_000)
    monkeypatch.setattr(row_stream, "BATCH_ROWS", 700)
    monkeypatch.setattr(held_windows, "MAX_HELD_BYTES", 1)
    held: list[tuple[int, int]] = []
    hold = HeldWindows.hold

    def noted(self: HeldWindows, *given: Any) -> None:
        hold(self, *given)
        held.append((len(self._used), self._bytes))

    monkeypatch.setattr(HeldWindows, "hold", noted)
    async with suite(tmp_path) as s:
        s.pipeline.write(range(12_000))
        streams = [s.relay.rows.StreamRows(WANTED, timeout=60) for _ in range(4)]
        found: list[list[pb.StreamRowsResponse]] = [[] for _ in streams]
        open_streams = list(range(len(streams)))
        while open_streams:  # in turns, so that each window is dropped by the next stream's
            for number in list(open_streams):
                answer = await streams[number].read()
                if answer is grpc.aio.EOF:
                    open_streams.remove(number)
                else:
                    found[number].append(answer)
        for each in found:
            assert opens(each) == [at(minute) for minute in range(12_000)]
    assert len(held) > 3, "windows that were dropped are read again; how many depends on which stream is faster"
    assert {windows for windows, _ in held} == {1}, "only the newest window is kept, above the limit"
