"""Input under way: whole frames, bounded by the pace at which a UDF takes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dexorder_udf.framing import FrameSplitter, frame
from dexorder_udf.pace import PIECE_BYTES, Pace, cut


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.integers(1, 2_000))
def test_pieces_are_whole_frames_and_all_of_them(bodies: list[bytes], size: int) -> None:
    rest, found = b"".join(map(frame, bodies)), list[bytes]()
    while rest:
        piece, rest = cut(rest, size)
        parts = FrameSplitter().feed(piece)
        assert parts and (len(piece) <= size or len(parts) == 1)
        found += parts
    assert found == bodies


@given(st.lists(st.floats(0.00001, 3.0), min_size=1, max_size=60))
def test_what_is_under_way_takes_a_quarter_of_the_silence_at_the_pace_before(seconds_a_point: list[float]) -> None:
    """A point has 100 bytes; whatever the pace, the agent gets at least a piece, and never more than fits."""
    pace, now = Pace(10.0), 0.0
    for mark, each in enumerate(seconds_a_point, 1):
        room = pace.room
        assert 0 < room <= 1 << 20
        pace.sends(mark, room, now)
        now += each * room / 100
        assert not pace.takes(mark + 1, now)
        assert pace.takes(mark, now) and not pace.takes(mark, now)
        assert pace.room * each / 100 <= 2.6 or pace.room == 1


def test_a_quick_one_soon_gets_whole_pieces() -> None:
    pace = Pace(10.0)
    for mark in range(1, 12):
        pace.sends(mark, pace.room, float(mark))
        pace.takes(mark, mark + 0.0001)
    assert pace.room > 8 * PIECE_BYTES
