"""Time without a trade: who has to say so before it is settled."""

from __future__ import annotations

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.realtime.numbered.quiet_time import Quiet, QuietTime

CLOCK_NS = 1_700_000_000 * SECOND_NS


def _quiet(happens: str) -> Quiet | None:
    """Return what the last answer settles: h a message, n one that joins, l life, b a break, a an answer, 1 s each.

    A number in front of a letter is the seconds before it. A socket that is alive is silent for 5 s at most.
    """
    quiet, now_ns, found, seconds = QuietTime(5 * SECOND_NS), 0, None, ""
    for letter in happens:
        if letter.isdigit():
            seconds += letter
            continue
        now_ns += int(seconds or 1) * SECOND_NS
        seconds = ""
        if letter in "hn":
            quiet.heard(now_ns=now_ns, is_news=letter == "n")
        elif letter == "l":
            quiet.alive(now_ns)
        elif letter == "b":
            quiet.broken(now_ns=now_ns)
        else:
            quiet.asked()
            found = quiet.answered(CLOCK_NS + now_ns, now_ns=now_ns)
    return found


@pytest.mark.parametrize(
    ("happens", "settled"),
    [
        ("naa", None),  # the socket has not shown that it lives since the first answer
        ("nala", Quiet(CLOCK_NS + 2 * SECOND_NS, False)),
        ("nlaa", None),
        ("ala", None),  # nothing was ever heard: the subscription may not work
        ("al58a", None),
        ("al59a", Quiet(CLOCK_NS + SECOND_NS, True)),
        ("nbala", None),  # a socket that was closed does not send what it has missed
        ("nbal60a", Quiet(CLOCK_NS + 3 * SECOND_NS, True)),
        ("nbahala", None),
        ("nbanala", Quiet(CLOCK_NS + 5 * SECOND_NS, False)),
        ("n5l4ala", None),  # an unusual silence: the subscription may have ended, although the connection lives
        ("n5l4n5l4ala", Quiet(CLOCK_NS + 19 * SECOND_NS, False)),  # as long as one before
        ("n5l4n6l3ala", None),  # the connection lives, but sent nothing for 6 s: what came then it does not send again
        ("n6l3n5l4ala", None),  # nor does the length of such a silence count as usual
        ("n5l4n5lala", Quiet(CLOCK_NS + 16 * SECOND_NS, False)),
        ("n6lala", None),
        ("n6lal5l5l5l5l5l5l5l5l5l5l5l4a", Quiet(CLOCK_NS + 8 * SECOND_NS, True)),  # REST alone, a minute later
        ("n6lal5l5l5l5l5l5l5l5l5l5l5l4ala", None),  # the subscription need not have been in force at that answer
        ("nb9n5l5l5l5l5l5l5l5lala", None),
        ("na60a", None),  # REST alone, and the socket is dead
    ],
)
def test_two_sources_have_to_agree(happens: str, settled: Quiet | None) -> None:
    assert _quiet(happens) == settled
