"""What strangers send takes no memory beyond a bound, however long it is."""

from __future__ import annotations

from dexorder_gateway.http1.remembered import MAX_LENGTH, remembered


def test_results_of_short_arguments_are_kept_and_of_long_ones_are_not() -> None:
    asked: list[str] = []

    def length(given: str) -> int:
        asked.append(given)
        return len(given)

    size = remembered(length, 2)
    short, long = "a" * MAX_LENGTH, "a" * (MAX_LENGTH + 1)
    assert [size(each) for each in (short, short, long, long)] == [256, 256, 257, 257]
    assert asked == [short, long, long]
    for other in ("b", "c"):
        size(other)
    assert size(short) == 256 and asked[-1] == short, "only the last ones are kept"
