"""What a connection may use, and when it is pinged or ended, as pure rules."""

from __future__ import annotations

import pytest

from dexorder_common.rpc.native.limits import (
    MAX_RESETS,
    RESETS_PER_SECOND,
    Due,
    Limits,
    ResetBucket,
    Signs,
    due,
)

LIMITS = Limits(handshake_seconds=10, ping_seconds=60, pong_seconds=20, idle_seconds=300, leave_seconds=5)


def test_resets_at_once_and_for_ever() -> None:
    bucket = ResetBucket(0.0)
    assert all(bucket.take(0.0) for _ in range(MAX_RESETS))
    assert not bucket.take(0.0)
    steady = ResetBucket(0.0)
    assert all(steady.take(number / RESETS_PER_SECOND) for number in range(10 * MAX_RESETS))


@pytest.mark.parametrize(
    ("signs", "now_s", "expected"),
    [
        (Signs(0), 9.9, Due.NOTHING),
        (Signs(0), 10.0, Due.ABORT),  # no preface: a slow loris
        (Signs(0, is_open=True, has_calls=True), 59.9, Due.NOTHING),
        (Signs(0, is_open=True, has_calls=True), 60.0, Due.PING),
        (Signs(0, is_open=True, has_calls=True, pinged_s=60.0), 79.9, Due.NOTHING),
        (Signs(0, is_open=True, has_calls=True, pinged_s=60.0), 80.0, Due.ABORT),
        (Signs(70, is_open=True, has_calls=True, pinged_s=60.0), 100.0, Due.NOTHING),  # bytes are a sign of life
        (Signs(290, is_open=True, idle_since_s=0.0), 299.0, Due.NOTHING),
        (Signs(290, is_open=True, idle_since_s=0.0), 300.0, Due.LEAVE),
        (Signs(290, is_open=True, has_calls=True, idle_since_s=0.0), 300.0, Due.NOTHING),
        (Signs(300, is_open=True, idle_since_s=0.0, left_s=300.0), 304.9, Due.NOTHING),
        (Signs(300, is_open=True, idle_since_s=0.0, left_s=300.0), 305.0, Due.ABORT),
        (Signs(300, is_open=True, has_calls=True, left_s=300.0), 310.0, Due.NOTHING),  # its calls may end
    ],
)
def test_what_a_connection_needs(signs: Signs, now_s: float, expected: Due) -> None:
    action, seconds = due(signs, now_s, LIMITS)
    assert action is expected
    assert seconds > 0 or action is Due.ABORT


def test_a_silent_client_is_gone_after_ping_and_pong_whenever_it_is_asked() -> None:
    signs, now_s = Signs(0, is_open=True, has_calls=True), 0.0
    while True:
        action, seconds = due(signs, now_s, LIMITS)
        if action is Due.ABORT:
            break
        if action is Due.PING:
            signs.pinged_s = now_s
        now_s += seconds
    assert LIMITS.ping_seconds + LIMITS.pong_seconds <= now_s <= 100
