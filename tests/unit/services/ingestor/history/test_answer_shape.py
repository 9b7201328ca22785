"""What shows that an answer may be cut."""

from __future__ import annotations

import pytest

from services.ingestor.history.answer_shape import may_lack_ends
from tests.unit.services.ingestor.conftest import MINUTE_NS, minutes
from tests.unit.services.ingestor.history.test_evidence import opens


@pytest.mark.parametrize(
    ("name", "present", "expected"),
    [
        ("whole", range(60), (False, False)),
        ("oldest only", range(20), (False, True)),
        ("newest only", range(40, 60), (True, False)),
        ("middle", range(20, 40), (True, True)),
        ("one candle", [30], (True, True)),
        ("excluded ends", range(1, 59), (False, False)),
        ("thin, with a gap at an end that is like the others", range(10, 60, 10), (False, False)),
        ("a gap within as wide as that at the end", [*range(20), *range(35, 45)], (False, False)),
    ],
)
def test_ends_are_suspect_where_the_gap_is_the_widest(
    name: str, present: list[int] | range, expected: tuple[bool, bool]
) -> None:
    assert may_lack_ends(minutes(0, 60), opens(*present), MINUTE_NS) == expected
