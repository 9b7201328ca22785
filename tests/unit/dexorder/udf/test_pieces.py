"""Input of a session: a message that was waited for is passed on at once, small ones in a row are gathered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dexorder.udf import servers


class Time:
    """Time in which reading takes ``reading`` seconds, and sleeping writes the next message."""

    def __init__(self, sink: int, reading: float, messages: list[bytes]) -> None:
        self._sink, self._reading, self._messages = sink, reading, messages
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += self._reading
        return self._now

    def sleep(self, seconds: float) -> None:
        assert seconds <= 0.005, "output would be late"
        if self._messages:
            os.write(self._sink, self._messages.pop(0))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    os.close(source)


@pytest.mark.parametrize(
    ("reading", "pieces"),
    [(0.0, [b"onetwo"]), (1.0, [b"one"])],
    ids=["close behind each other", "one that was waited for"],
)
def test_small_messages_are_gathered(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, reading: float, pieces: list[bytes]
) -> None:
    source, sink = pipe
    monkeypatch.setattr(servers, "time", Time(sink, reading, [b"two"]))
    os.write(sink, b"one")
    found = servers._pieces(source)
    assert [next(found)] == pieces
    os.close(sink)
    assert list(found) == []


def test_a_large_piece_and_the_end_wait_for_nothing(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe
    monkeypatch.setattr(servers, "time", Time(sink, 0.0, []))
    os.write(sink, b"x" * 10_000)
    os.close(sink)
    assert list(servers._pieces(source)) == [b"x" * 10_000]
