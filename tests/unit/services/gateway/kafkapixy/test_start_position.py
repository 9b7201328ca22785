"""Where a partition starts."""

from __future__ import annotations

import pytest

from services.gateway.kafkapixy.start_position import StartPosition, start_position


@pytest.mark.parametrize(
    ("offset", "metadata", "low", "high", "earliest", "start"),
    [
        (-1001, "", 3, 9, False, StartPosition(9)),
        (-1001, "", 3, 9, True, StartPosition(3)),
        (5, "", 3, 9, False, StartPosition(5, committed=True)),
        (9, "", 3, 9, False, StartPosition(9, committed=True)),
        (5, "BB.", 3, 9, False, StartPosition(5, ((6, 7),), committed=True)),
        (1, "BEBB.", 3, 9, False, StartPosition(3, ((3, 6), (7, 8)))),
        (1, "BB.", 3, 9, False, StartPosition(3)),
        (5, "BBX\ufffd", 3, 9, False, StartPosition(5)),
        (1, "BBX\ufffd", 3, 9, False, StartPosition(3)),
        # The topic was made anew: everything in it is news to the group.
        (10, "BB.", 3, 9, False, StartPosition(3)),
    ],
)
def test_start_of_a_partition(
    offset: int, metadata: str, low: int, high: int, earliest: bool, start: StartPosition
) -> None:
    found = start_position(offset, metadata, low=low, high=high, earliest=earliest)
    assert (found.offset, found.acked, found.committed) == (start.offset, start.acked, start.committed)
    assert bool(found.remark) == (offset >= 0 and not start.committed)
