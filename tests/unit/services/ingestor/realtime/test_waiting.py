"""Why a job settles nothing: which reason counts, and when it is worth a word."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import ccxt.async_support as ccxt
import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.realtime.wait_teller import WaitTeller
from dexorder_ingestor.realtime.waiting import Progress, Wait, WaitReason, why_failed

BEHIND = Wait(WaitReason.REST_BEHIND, "REST is behind")
REFUSED = Wait(WaitReason.REST_REFUSES, "503")
BANNED = Wait(WaitReason.BANNED, "until noon")
LIVE_ONLY = Wait(WaitReason.LIVE_ONLY, "live only")


@pytest.mark.parametrize(
    ("seconds", "feed", "failure", "ban", "expected"),
    [
        (59, BEHIND, REFUSED, BANNED, None),
        (60, BEHIND, None, None, BEHIND),
        (60, BEHIND, REFUSED, None, REFUSED),
        (60, BEHIND, REFUSED, BANNED, BANNED),
        (0, LIVE_ONLY, None, None, LIVE_ONLY),
        (60, None, None, None, Wait(WaitReason.NOTHING_KNOWN, "no trade is settled; the log may say why")),
    ],
    ids=["too early", "of the feed", "of a query", "a ban", "from the start", "none"],
)
def test_the_reason_that_counts(
    seconds: int, feed: Wait | None, failure: Wait | None, ban: Wait | None, expected: Wait | None
) -> None:
    progress = Progress(5, now_ns=0)
    if failure:
        progress.failed(failure)
    assert progress.wait(5, feed, ban=ban, now_ns=seconds * SECOND_NS) == expected


def test_a_job_that_goes_on_has_no_reason_and_begins_to_count_again() -> None:
    progress = Progress(5, now_ns=0)
    assert progress.wait(5, BEHIND, now_ns=70 * SECOND_NS) == BEHIND
    assert progress.wait(6, BEHIND, now_ns=71 * SECOND_NS) is None
    assert progress.wait(6, BEHIND, now_ns=130 * SECOND_NS) is None
    assert progress.wait(6, BEHIND, now_ns=131 * SECOND_NS) == BEHIND


def test_what_an_earlier_dispatch_has_settled_is_no_progress() -> None:
    progress = Progress(50, now_ns=0)
    for second, settled_ns in enumerate(range(51), 10):
        assert progress.wait(settled_ns, BEHIND, now_ns=second * SECOND_NS) == (None if second < 60 else BEHIND)


@pytest.mark.parametrize(("silent", "seconds"), [(-5, 60), (0, 60), (20, 40), (45, 15), (86_400, 15)])
def test_the_silence_of_the_dispatch_before_counts(silent: int, seconds: int) -> None:
    progress = Progress(5, silent_ns=silent * SECOND_NS, now_ns=0)
    assert progress.wait(5, BEHIND, now_ns=seconds * SECOND_NS - 1) is None
    assert progress.wait(5, BEHIND, now_ns=seconds * SECOND_NS) == BEHIND


def test_a_query_that_is_answered_is_no_reason_any_more() -> None:
    progress = Progress(5, now_ns=0)
    progress.failed(REFUSED)
    progress.answered()
    assert progress.wait(5, BEHIND, now_ns=60 * SECOND_NS) == BEHIND


def test_a_text_that_changes_all_the_time_is_told_every_ten_seconds() -> None:
    progress, told = Progress(5, now_ns=0), []
    for second in range(60, 90):
        wait = progress.wait(5, BEHIND._replace(text=f"of {second}"), now_ns=second * SECOND_NS)
        assert wait is not None
        told.append(wait.text)
    assert sorted(set(told)) == ["of 60", "of 70", "of 80"]
    other = progress.wait(5, REFUSED, now_ns=90 * SECOND_NS)
    assert other == REFUSED


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (BadAnswer("other values of trade 7", kind="other_symbol"), WaitReason.OTHER_VALUES),
        (BadAnswer("lacks trade 7", kind="hole"), WaitReason.REST_LACKS),
        (BadAnswer("not JSON", kind="not_json"), WaitReason.REST_REFUSES),
        (ccxt.BadSymbol("-1121"), WaitReason.UNKNOWN_MARKET),
        (ccxt.ExchangeNotAvailable("503"), WaitReason.REST_REFUSES),
        (None, WaitReason.UNKNOWN_MARKET),
    ],
)
def test_the_reason_of_a_query_that_failed(cause: Exception | None, reason: WaitReason) -> None:
    error = ExchangeFailure("X refuses it")
    error.__cause__ = cause
    assert why_failed(error) == Wait(reason, "X refuses it")


def test_the_text_of_an_exchange_is_one_short_printable_line() -> None:
    progress = Progress(5, now_ns=0)
    progress.failed(Wait(WaitReason.REST_REFUSES, "\x1b]0;owned\x07<html>\r\n\u202e" + "x" * 100_000))
    found = progress.wait(5, None, now_ns=60 * SECOND_NS)
    assert found is not None and found.text.isprintable() and len(found.text) == 500
    assert found.text.startswith("]0;owned <html> xxx")


def test_dropped_messages_are_told_for_a_minute_although_trades_are_settled() -> None:
    progress = Progress(0, now_ns=0)
    progress.dropped(20, now_ns=0)
    progress.dropped(3, now_ns=10 * SECOND_NS)
    told = [progress.wait(second, REFUSED, now_ns=second * SECOND_NS) for second in range(1, 100)]
    assert {each.reason for each in told[:69] if each} == {WaitReason.OVERLOADED} and None not in told[:69]
    assert told[68] is not None and "23 messages of the socket were dropped" in told[68].text
    assert told[69:] == [None] * 30
    progress.dropped(1, now_ns=100 * SECOND_NS)
    again = progress.wait(100, None, ban=BANNED, now_ns=100 * SECOND_NS)
    assert again == BANNED, "a ban is what keeps REST from filling the gaps"
    again = progress.wait(101, None, now_ns=101 * SECOND_NS)
    assert again is not None and again.text.startswith("the ingestor is overloaded: 1 messages")


async def test_a_change_is_told_once_counted_and_forgotten_with_the_job() -> None:
    now_ns, told = 0, list[str]()
    clock = SimpleNamespace(monotonic_ns=lambda: now_ns, wall_ns=lambda: 1_700_000_000 * SECOND_NS)
    venue = SimpleNamespace(name="V", clock=clock, ban_left_ns=0)
    registry = CollectorRegistry()
    services = cast(Any, SimpleNamespace(venue=venue, metrics=IngestorMetrics(registry)))
    series = cast(Any, SimpleNamespace(settled_ns=5, waits=BEHIND))
    teller = WaitTeller(services, "A/B", series, Progress(5, now_ns=0), lambda: told.append(teller.text))

    def silent(reason: str) -> float | None:
        return registry.get_sample_value("dexorder_ingestor_silent_jobs", {"venue": "V", "reason": reason})

    now_ns = 60 * SECOND_NS
    for _ in range(3):
        teller._change(teller._look())
    assert told == ["REST is behind"] and silent("rest_behind") == 1
    venue.ban_left_ns = 30 * SECOND_NS
    teller._change(teller._look())
    assert told[-1] == "V refuses all calls from this host until 2023-11-14T22:13:50Z"
    assert (silent("rest_behind"), silent("banned")) == (0, 1)
    task = asyncio.create_task(teller.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert silent("banned") == 0
